"""Make the pictures of the README and the documentation from a real run: ``python docs/images/make_pictures.py SESSION``.

In comes a session file of ``inferspan demo`` and a Chromium on the path; out comes ``docs/images/trace.png``: the timeline of the streamed
answer with its first decode step opened. Of a session of ``examples/17_inside.py --smollm2`` it is ``docs/images/activations.png``: the map
of activations of its first request; of the first one of ``examples/18_explain.py --smollm2``, ``questions.otlp.jsonl``, it is
``docs/images/explain.png``: why the requests take their time. Nothing is drawn by hand: the page is the report with its other parts hidden.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from inferspan.report.html import render
from inferspan.report.session import read_session

IMAGES = Path(__file__).parent
SIZE = (1280, 880)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars")
OPEN_THE_STEP = """
<style>main { padding-top: 8px } .tall { max-height: 330px !important }</style>
<script>
const page = document.getElementById("page"), request = document.getElementById("request");
for (const part of [...page.children]) if (part !== request) part.remove();
const lines = [...document.querySelectorAll(".timeline .row.opens")];
(lines.find((line) => line.textContent.includes("step 1 ")) || lines[0]).click();
const timeline = document.querySelector(".timeline");
while (timeline.nextElementSibling) timeline.nextElementSibling.remove();
</script>
"""
ONLY_THE_MAP = """
<style>main { padding-top: 8px }</style>
<script>
const page = document.getElementById("page"), request = document.getElementById("request");
for (const part of [...page.children]) if (part !== request) part.remove();
const head = [...request.querySelectorAll("h3")].find((one) => one.textContent === "Activations");
const keep = new Set([request.querySelector("h2"), head, head.nextElementSibling]);
for (const part of [...request.children]) if (!keep.has(part)) part.remove();
const rows = [...head.nextElementSibling.querySelectorAll(".row")];
rows.filter((row) => !/^model\\.layers\\.\\d+$/.test(row.querySelector(".label").textContent)).forEach((row) => row.remove());
</script>
"""
ONLY_THE_CAUSES = """
<style>main { padding-top: 8px }</style>
<script>
const page = document.getElementById("page"), head = document.getElementById("explain");
for (const part of [...head.parentElement.children]) if (part !== head && part !== head.nextElementSibling) part.remove();
for (let one = head.parentElement; one !== page; one = one.parentElement)
  for (const part of [...one.parentElement.children]) if (part !== one) part.remove();
for (const one of document.querySelectorAll("details")) one.open = !one.textContent.startsWith("Not enough data");
</script>
"""


def main() -> None:
    """Read the session, choose the request, show one part of it, and take the picture."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("a Chromium or Chrome is needed on the path")
    session = read_session(sys.argv[1])
    name, shown = next(
        (made for start, made in {"inside": ("activations", ONLY_THE_MAP), "questions": ("explain", ONLY_THE_CAUSES)}.items()
         if Path(sys.argv[1]).name.startswith(start)),
        ("trace", OPEN_THE_STEP),
    )  # fmt: skip
    streamed = (number for number, one in enumerate(session.requests, 1) if one.flag("gen_ai.request.stream") and not one.span.failed)
    anchor = {"activations": "request-1", "explain": "explain"}.get(name) or f"request-{next(streamed, 1)}"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(render(session).replace("</body>", shown + "</body>"), encoding="utf-8")
        output = IMAGES / f"{name}.png"
        command = [browser, *FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={output}"]
        subprocess.run([*command, f"{page.as_uri()}#{anchor}"], check=True, stderr=subprocess.DEVNULL, timeout=120)
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
