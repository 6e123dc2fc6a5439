"""The page's script with what a hostile or broken session file may hold: all of it is drawn, nothing acts, nothing is rounded."""

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
from inferspan.report.session import read_session
from tests.report.conftest import START, otlp_attributes

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROPERTIES = ("__proto__", "constructor", "toString", "valueOf", "hasOwnProperty", "length", "__defineGetter__", "then")
"""Names that every object of the script's language has, or that change how a value is used."""
MARKUP = "</script><img src=x onerror=\"document.title='owned'\">"
OBJECT = {"kvlistValue": {"values": [{"key": name, "value": {"intValue": "1"}} for name in (*PROPERTIES, "toJSON")]}}
BIG = 2**53 + 1

# Opens and points at everything on the page, then marks its end in the title.
DRIVER = """
<script>
const point = (root) => { for (const element of root.querySelectorAll("*")) element.dispatchEvent(new MouseEvent("mousemove", {bubbles: true})); };
for (const head of document.querySelectorAll("th.sortable")) { head.click(); head.click(); }
for (let number = 0; number < document.querySelectorAll("tr[tabindex]").length; number += 1) {
  document.querySelectorAll("tr[tabindex]")[number].click();
  const request = document.getElementById("request");
  for (const details of request.querySelectorAll("details")) details.open = true;
  for (const button of request.querySelectorAll("button")) button.click();
  for (const line of request.querySelectorAll(".row")) line.click();
  for (const select of request.querySelectorAll("select")) for (const option of select.options) {
    select.value = option.value;
    select.dispatchEvent(new Event("change"));
  }
  for (const bar of request.querySelectorAll(".bar")) bar.click();
  point(request);
}
point(document.getElementById("page"));
document.title = "driven " + document.title;
</script>
"""


class Drawn:
    """What a browser shows of a session's report after its script and the driver have run."""

    def __init__(self, session_file: Path, folder: Path) -> None:
        path = write_report(read_session(session_file), folder / "report.html")
        path.write_text(path.read_text(encoding="utf-8").replace("</body>", DRIVER + "</body>"), encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
        flags += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
        done = subprocess.run([BROWSER or "", *flags], capture_output=True, text=True, timeout=300, check=True)
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.title = re.findall("<title>(.*?)</title>", done.stdout)[0]
        self.page = done.stdout.split('<main id="page">')[1].split("</main>")[0]


def hostile_metrics(recording: Any) -> int:
    """Add metrics with odd units, names, values and buckets; returns their number."""
    point = {"asDouble": 1.0, "timeUnixNano": str(START)}
    for word in (*PROPERTIES, MARKUP):
        recording.metric(f"m {word}", "gauge", word, [{**point, "attributes": otlp_attributes({word: word})}])
    huge = [{"asDouble": value, "timeUnixNano": str(START + number)} for number, value in enumerate((1.7e308, -1.7e308, 0.0))]
    recording.metric("m huge", "gauge", "s", huge)
    late = [{"asInt": str(value), "timeUnixNano": "9" * 400} for value in (BIG, 2**63 - 1)]
    recording.metric("m late", "sum", "By", late)
    recording.metric("m overflow", "histogram", "s", [{"count": str(2**64 - 1), "sum": "Infinity", "bucketCounts": [str(2**64 - 1)]}])
    buckets = {"bucketCounts": ["1"] * 300, "explicitBounds": [1e308] * 299}
    recording.metric("m buckets", "histogram", "s", [{"count": "300", **buckets}])
    return len(PROPERTIES) + 5


def hostile_requests(recording: Any) -> int:
    """Add requests whose attributes, messages and times are of every wrong kind; returns their number."""
    messages = [[None, 7, "text", [], {}, {"role": {"toString": 1}, "parts": [None, 5, {"content": {"toString": 1}}]}, {"parts": "no list"}], 5, None]
    facts: list[dict[str, Any]] = [
        {semconv.INPUT_MESSAGES: json.dumps(message), semconv.OUTPUT_MESSAGES: MARKUP, semconv.OPERATION_NAME: MARKUP} for message in messages
    ]
    levels = (semconv.MODULE_NAME, semconv.MODULE_TYPE, semconv.PROFILER_KIND, semconv.STAGE_KIND, semconv.STAGE_SELF_TIME, semconv.BATCH_STEPS)  # what makes a span another one than a request
    names = [attribute.key for attribute in semconv.ATTRIBUTES if attribute.key not in levels]
    odd: tuple[Any, ...] = (MARKUP, True, -1, 1e308, -1e308, 5e-324, BIG, [], ["a"], [1.5, -2.5], [True])
    facts += [dict.fromkeys(names, value) for value in odd]
    facts += [dict.fromkeys(PROPERTIES, MARKUP)]
    for number, attributes in enumerate(facts):
        trace = recording.trace()
        request = recording.span(f"chat {MARKUP}", number, 1, trace=trace, attributes=attributes, error=MARKUP if number % 2 else None)
        phase = recording.span("decode", number, 1, trace=trace, parent=request, attributes={**attributes, semconv.PHASE: "decode"})
        step = recording.span("decode_step", number, 1, trace=trace, parent=phase, attributes=attributes)
        recording.span("layer", number, 1, trace=trace, parent=step, attributes={**attributes, semconv.MODULE_NAME: "__proto__"})
    times: tuple[Any, ...] = ("9" * 400, "", "-1", 1.5, None, [], {}, "Infinity")
    for span, value in zip(recording.spans[-8:], times, strict=True):
        span["endTimeUnixNano" if value else "startTimeUnixNano"] = value
    for span in recording.spans[::3]:
        span["attributes"] += [{"key": key, "value": OBJECT} for key in (*names[::5], "app.object")]
        span["events"] = [{"name": MARKUP, "timeUnixNano": "9" * 400, "attributes": [{"key": "__proto__", "value": OBJECT}]}]
        span["links"] = [{"traceId": MARKUP, "spanId": "__proto__", "attributes": [{"key": "__proto__", "value": OBJECT}]}]
    return len(facts)


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


@needs_browser
def test_an_ordinary_page_has_no_console_message(recording: Any, generate: Callable[..., str], fail: Callable[..., str], tmp_path: Path) -> None:
    """Everything that can be opened on a page is opened without a complaint of the browser."""
    generate(recording, 0, tokens=12, content=True)
    fail(recording, 500)
    points = [{"asDouble": float(n), "timeUnixNano": str(START + n * 10**9)} for n in range(3)]
    recording.metric("m", "gauge", "By", points)
    drawn = Drawn(recording.write(tmp_path / "session.jsonl"), tmp_path)
    assert drawn.console == []
    assert drawn.title == "driven tiny/model - inferspan"


@needs_browser
def test_a_hostile_page_is_drawn_whole_and_inert(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Odd values are left out or shown as they are; all requests and metrics are there, no part has failed, and no markup came alive."""
    generate(recording, 0, content=True)
    requests, metrics = hostile_requests(recording), hostile_metrics(recording)
    drawn = Drawn(recording.write(tmp_path / "session.jsonl"), tmp_path)
    assert drawn.console == []
    assert drawn.title.startswith("driven ")
    assert "could not be drawn" not in drawn.page
    assert "<img" not in drawn.page
    assert drawn.page.count('<tr tabindex="0"') == requests + 1
    assert drawn.page.count('<div class="mono">m ') == metrics


@needs_browser
@pytest.mark.parametrize("name", PROPERTIES)
def test_a_unit_that_is_a_property_of_every_object(recording: Any, tmp_path: Path, name: str) -> None:
    """The unit stands behind the value like any other word."""
    recording.metric("m", "gauge", name, [{"asDouble": 1.0, "timeUnixNano": str(START)}])
    drawn = Drawn(recording.write(tmp_path / "session.jsonl"), tmp_path)
    assert f"<td>1 {name}</td>" in drawn.page
    assert drawn.console == []


@needs_browser
def test_large_integers_are_shown_exactly(recording: Any, tmp_path: Path) -> None:
    """Attributes, sums and counts beyond 2**53 read as in the file."""
    recording.span("forward tiny", 0, 1, trace=recording.trace(), attributes={"app.order": BIG, "app.low": -BIG})
    recording.metric("m", "sum", "1", [{"asInt": str(BIG), "timeUnixNano": str(START)}])
    recording.metric("n", "histogram", "s", [{"count": str(BIG + 1), "bucketCounts": [str(BIG + 1)], "timeUnixNano": str(START)}])
    drawn = Drawn(recording.write(tmp_path / "session.jsonl"), tmp_path)
    for shown in (f"<td>{BIG}</td>", f"<td>{-BIG}</td>", f"<td>{BIG:,}</td>", f"{BIG + 1:,} values"):
        assert shown in drawn.page


@needs_browser
def test_an_unknown_duration_is_a_dash(recording: Any, tmp_path: Path) -> None:
    """A request whose end cannot be read has no duration, not one of 0."""
    recording.span("forward tiny", 0, 1, trace=recording.trace())
    recording.spans[0]["endTimeUnixNano"] = "9" * 400
    drawn = Drawn(recording.write(tmp_path / "session.jsonl"), tmp_path)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", drawn.page.split("<tbody>")[1].split("</tr>")[0])
    assert cells[9] == "\u2013"


@needs_browser
def test_an_exponential_histogram_is_drawn(recording: Any, tmp_path: Path) -> None:
    """Count, mean, sum and percentiles stand beside a picture of the buckets."""
    point = {"count": "4", "sum": 6.0, "scale": 0, "positive": {"offset": 0, "bucketCounts": ["4"]}, "min": 1.5, "max": 1.5}
    recording.metric("m", "exponentialHistogram", "s", [{**point, "timeUnixNano": str(START)}])
    drawn = Drawn(recording.write(tmp_path / "session.jsonl"), tmp_path)
    shown = re.sub("<.*?>", "", drawn.page)
    assert "4 values, mean 1.50 s, sum 6 s, p50 1.50 s, p95 1.50 s" in shown
    assert "<rect" in drawn.page


@needs_browser
def test_events_and_links_of_a_request_are_shown(recording: Any, tmp_path: Path) -> None:
    """What the program put on the span has a place on the page."""
    recording.span("forward tiny", 0, 1, trace=recording.trace())
    recording.spans[0]["events"] = [{"name": "cache miss", "timeUnixNano": str(START), "attributes": otlp_attributes({"app.key": "k7"})}]
    recording.spans[0]["links"] = [{"traceId": "ab" * 16, "spanId": "cd" * 8}]
    drawn = Drawn(recording.write(tmp_path / "session.jsonl"), tmp_path)
    assert "event cache miss" in drawn.page
    assert "app.key: k7" in drawn.page
    assert f"link to trace {'ab' * 16}, span {'cd' * 8}" in drawn.page
