"""Using the page in a browser: zoom by keys and mouse, sorting by keyboard, the tree of modules, printing, several processes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.report.html import write_report
from inferspan.report.session import read_sessions
from tests.explain.made import MADE, make
from tests.report.conftest import START, otlp_attributes

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
HELPERS = """
const all = (choice) => [...document.querySelectorAll(choice)];
const press = (element, key) => { element.focus(); element.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true})); };
const texts = (choice) => all(choice).map((element) => element.textContent);
const said = [];
"""


def used(files: list[Path], folder: Path, script: str, **options: Any) -> list[Any]:
    """What a script that uses the page has put into ``said``; the browser must not complain."""
    path = write_report(read_sessions(files), folder / "report.html", **options)
    page = path.read_text(encoding="utf-8")
    end = "document.title = 'said ' + JSON.stringify(said);"
    path.write_text(page.replace("</body>", f"<script>{HELPERS}{script}\n{end}</script></body>"), encoding="utf-8")
    command = [str(BROWSER), *FLAGS, "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    found = re.search(r"<title>said (.*?)</title>", done.stdout)
    assert found is not None, "the script did not come to its end"
    heard: list[Any] = json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    return heard


@pytest.fixture
def session(recording: Any, generate: Callable[..., str], fail: Callable[..., str], tmp_path: Path) -> Path:
    """Two generations, a failure, a stage around the first, a GPU."""
    trace = recording.trace()
    stage = {semconv.STAGE_SELF_TIME: 0.01, semconv.STAGE_NAME: "answer"}
    around = recording.span("answer", 0, 80, trace=trace, attributes=stage)
    generate(recording, 10, content=True, parent=around, trace=trace)
    generate(recording, 100, tokens=5)
    fail(recording, 200)
    gpu = {"hw.id": "GPU-1", "hw.name": "H200", "hw.driver_version": "570.1"}
    points = [
        {"asDouble": 0.2 * number, "timeUnixNano": str(START + number * 50_000_000), "attributes": otlp_attributes(gpu)} for number in range(5)
    ]
    recording.metric("hw.gpu.utilization", "gauge", "1", points)
    zero = {"asInt": "0", "timeUnixNano": str(START), "attributes": otlp_attributes({"gen_ai.token.modality": "image"})}
    recording.metric("gen_ai.client.inference.usage.input_tokens", "sum", "{token}", [zero])
    path: Path = recording.write(tmp_path / "session.jsonl")
    return path


def test_the_flame_view_zooms_by_keyboard(session: Path, tmp_path: Path) -> None:
    """Arrows walk from the request to a module, Enter zooms into it, Escape shows all; each is told to a screen reader."""
    script = """
    const flame = all(".flame")[0], live = all("[aria-live]")[0];
    const width = (name) => { const box = all(".boxes .box").find((one) => one.textContent === name); return box ? parseFloat(box.style.width) : null; };
    said.push(Math.round(width("prefill")));
    for (const key of ["ArrowDown", "ArrowDown", "ArrowDown"]) press(flame, key);
    said.push(live.textContent.split(":")[0]);
    press(flame, "ArrowRight");
    said.push(live.textContent.split(":")[0]);
    press(flame, "Enter");
    said.push(Math.round(width("model.layers.1")));
    press(flame, "Escape");
    said.push(Math.round(width("prefill")), live.textContent.split(":")[0]);
    """
    assert used([session], tmp_path, script) == [50, "model.layers.0", "model.layers.1", 100, 50, "text_completion tiny/model"]


def test_the_timeline_zooms_by_keys_buttons_and_mouse(session: Path, tmp_path: Path) -> None:
    """Plus halves the range, 0 shows all, a drag chooses a range; curves and bars move together."""
    script = """
    const chart = all("#session ~ .panel .timeline")[0], end = () => texts("#session ~ .panel .axis span").slice(0, 5).pop();
    const whole = end();
    press(chart, "+");
    const half = end();
    press(chart, "0");
    said.push(whole !== half, end() === whole, texts(".curve .label")[0].startsWith("GPU utilisation"), all(".curve path").length);
    all("button").find((button) => button.title === "zoom in").click();
    said.push(end() === half);
    press(chart, "Home");
    const box = all("#session ~ .panel .axis")[0].getBoundingClientRect();
    for (const [kind, share] of [["pointerdown", 0.5], ["pointerup", 0.75]]) chart.dispatchEvent(new PointerEvent(kind, {clientX: box.left + box.width * share, button: 0, bubbles: true}));
    said.push(end() !== whole, texts(".bar.named").includes("answer"));
    """
    assert used([session], tmp_path, script) == [True, True, True, 1, True, True, False]


def test_tables_sort_by_keyboard(session: Path, tmp_path: Path) -> None:
    """A head is a button; what it sorts by is told, and unknown values come last both ways."""
    script = """
    const head = all(".requests th").find((one) => one.textContent === "Tokens out");
    const button = head.querySelector("button");
    button.focus();
    said.push(document.activeElement === button);
    button.click();
    said.push(head.getAttribute("aria-sort"), texts(".requests tbody td:first-child").join());
    button.click();
    said.push(head.getAttribute("aria-sort"), texts(".requests tbody td:first-child").join());
    press(all(".requests tbody tr")[1], "Enter");
    said.push(texts("#request-title")[0].slice(0, 9));
    """
    assert used([session], tmp_path, script) == [True, "ascending", "1,2,3", "descending", "2,1,3", "Request 1"]


def test_operations_are_listed_and_costs_are_a_tree(session: Path, tmp_path: Path) -> None:
    """Layers with numbers are one row, or each its own; rows open inside; the kind can be chosen."""
    script = """
    const names = () => texts(".meter.tree .name");
    said.push(names().join());
    const join = all("input[type=checkbox]")[0];
    join.click();
    said.push(names().filter((name) => /^[01]$/.test(name)).length);
    const kind = all("#operations ~ .legend select")[0];
    kind.value = "stage";
    kind.dispatchEvent(new Event("change"));
    said.push(texts("#operations ~ .panel tbody .mono").join());
    """
    assert used([session], tmp_path, script) == ["model.layers.*,self_attn", 2, "answer"]


def test_zero_rows_and_doubles_are_out_of_the_way(session: Path, tmp_path: Path) -> None:
    """A modality that never came has no row of its own, and a share is shown in per cent."""
    script = """
    const first = all("#metrics ~ details")[0];
    said.push([...first.querySelectorAll("tbody .mono")].map((one) => one.textContent), texts("summary").some((text) => text === "Stayed at zero (1)"));
    said.push([...first.querySelectorAll("tbody td:nth-child(3)")].map((one) => one.textContent).join());
    said.push(texts("#system ~ details .pairs td").join(" "));
    """
    found = used([session], tmp_path, script)
    assert found[:3] == [["hw.gpu.utilization"], True, "80 %"]
    assert "GPU 0 name H200 GPU 0 driver 570.1" in found[3]


def test_paper_shows_what_is_folded(session: Path, tmp_path: Path) -> None:
    """Everything is open and light while it prints, and as before afterwards; a PDF comes out."""
    script = """
    document.documentElement.dataset.theme = "dark";
    const open = () => all("details:not([open])").length, before = open();
    dispatchEvent(new Event("beforeprint"));
    said.push(before > 0, open(), document.documentElement.dataset.theme);
    dispatchEvent(new Event("afterprint"));
    said.push(open() === before, document.documentElement.dataset.theme);
    """
    assert used([session], tmp_path, script) == [True, 0, "light", True, "dark"]
    page, pdf = write_report(read_sessions([session]), tmp_path / "printed.html"), tmp_path / "printed.pdf"
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={pdf}", page.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert pdf.read_bytes().startswith(b"%PDF")


def test_a_trace_is_one_click_away(session: Path, tmp_path: Path) -> None:
    """With the address of a backend, the trace id is a link that opens outside and gives nothing of the page away."""
    script = "const link = all('#request a')[0]; said.push(link.href, link.rel, link.target);"
    found = used([session], tmp_path, script, trace_url="http://localhost:16686/trace/{trace_id}")
    assert found == [f"http://localhost:16686/trace/{1:032x}", "noopener noreferrer", "_blank"]


@pytest.mark.parametrize("address", ["javascript:alert('{trace_id}')", "http://localhost/trace"])
def test_other_addresses_are_refused(session: Path, tmp_path: Path, address: str) -> None:
    """What is no address of a trace never becomes a link."""
    with pytest.raises(ValueError, match="no address of a trace"):
        write_report(read_sessions([session]), tmp_path / "report.html", trace_url=address)


def test_processes_are_told_apart(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """With several processes each request names its own."""
    files = []
    for name in ("a", "b"):
        generate(recording, 50)
        files.append(recording.write(tmp_path / f"{name}.jsonl"))
        recording.spans.clear()
    script = "said.push(texts('.requests th').includes('Process'), texts('.requests tbody td:nth-child(3)').join());"
    assert used(files, tmp_path, script) == [True, "tests #1,tests #2"]


def test_rows_of_a_batch_are_pairs(recording: Any, tmp_path: Path) -> None:
    """Each output stands beside its own input, with the roles of a chat, and the table shows the first prompt."""
    turns = [{"role": role, "parts": [{"content": f"{role} {row}"}]} for row in (1, 2) for role in ("system", "user")]
    outputs = [{"role": "assistant", "parts": [{"content": f"output {row}"}], "finish_reason": "stop"} for row in (1, 2)]
    attributes = {
        semconv.BATCH_SIZE: 2, semconv.INPUT_MESSAGES: json.dumps(turns), semconv.OUTPUT_MESSAGES: json.dumps(outputs),
    }  # fmt: skip
    recording.span("chat m", 0, 10, trace=recording.trace(), attributes=attributes)
    script = "said.push(texts('.pair pre'), texts('.prompt').pop());"
    found = used([recording.write(tmp_path / "session.jsonl")], tmp_path, script)
    assert found[0] == ["system 1", "user 1", "output 1", "system 2", "user 2", "output 2"]
    assert found[1] == "user 1 and 1 more prompt"


def test_causes_are_on_the_page(tmp_path: Path) -> None:
    """The first cause is open, with what to change; a span that shows it leads to its request; limits and missing data are folded."""
    run, _ = MADE["kernels take a third of a step"]
    make(tmp_path / "session.jsonl", run)
    script = """
    const causes = all("#explain ~ .panel")[0], rows = texts("#explain ~ .panel details[open] td");
    said.push(causes.querySelector("summary").textContent.split(" the device")[0]);
    said.push(rows[rows.indexOf("Setting") + 1]);
    said.push([...causes.querySelectorAll("summary")].slice(1).map((one) => one.textContent.replace(/[0-9]+/, "some")));
    const link = causes.querySelector("a");
    link.click();
    said.push(location.hash === link.getAttribute("href"));
    """
    cause = "highlaunch bound 61.3 % decode waits for the host to launch kernels:"
    folded = ["What limits each part", "Where the time went, with the causes", "Not enough data for some questions"]
    assert used([tmp_path / "session.jsonl"], tmp_path, script) == [cause, 'generate(..., cache_implementation="static")', folded, True]
