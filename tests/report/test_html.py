"""The report: what it holds, that nothing in it can act, and that a browser draws it."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.report.html import render, write_report
from inferspan.report.payload import payload
from inferspan.report.session import read_session

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def page_data(page: str) -> dict[str, Any]:
    """The data that the page carries."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_the_page_carries_the_session(session_path: Path) -> None:
    """Figures, tree, tokens and metrics of the session are in the page, with times in microseconds since the request's start."""
    data = page_data(render(read_session(session_path)))
    assert data["title"] == "tiny/model"
    assert (data["totals"]["requests"], data["totals"]["failed"], data["totals"]["output_tokens"]) == (3, 1, 8)
    first = data["requests"][0]
    steps = [step for phase in first["phases"] for step in phase["steps"]]
    assert [(step["name"], step["at"], step["us"], len(step["calls"])) for step in steps] == [
        ("prefill_step", 0, 20000, 4), ("decode_step", 20000, 10000, 4), ("decode_step", 30000, 10000, 0),
    ]  # fmt: skip
    assert [(data["modules"][call[0]]["name"], call[1], call[2]) for call in steps[0]["calls"]] == [
        ("layer 0", 0, 0), ("layer 0 self_attn", 1, 0), ("layer 1", 0, 8000), ("layer 1 self_attn", 1, 8000),
    ]  # fmt: skip
    place = {name: number for number, name in enumerate(data["tokenFields"])}
    assert [token[place["text"]] for token in first["tokens"][0]] == [" word0", " word1", " word2"]
    assert [token[place["logprob"]] for token in first["tokens"][0]] == [-0.1, -0.2, -0.3]
    assert data["requests"][2]["exception"]["exception.message"] == "too long"
    assert [series["name"] for series in data["series"]] == [semconv.M_SERVER_TTFT, semconv.M_PROCESS_MEMORY]


def test_time_by_module_adds_up(session_path: Path) -> None:
    """Own times of the module types and the rest make up the sampled steps."""
    prefill, decode = page_data(render(read_session(session_path)))["requests"][0]["breakdowns"]
    assert {part["type"]: (part["calls"], part["seconds"]) for part in prefill["parts"]} == {
        "TinyAttention": (2, pytest.approx(0.008)), "TinyLayer": (2, pytest.approx(0.008)),
    }  # fmt: skip
    assert (prefill["outside"], prefill["seconds"], prefill["steps"]) == (pytest.approx(0.004), pytest.approx(0.02), 1)
    assert decode["layers"] == [[0, pytest.approx(0.004)], [1, pytest.approx(0.004)]]


@pytest.mark.parametrize("measured", [True, False], ids=["all of them", "all but one"])
def test_time_by_module_by_the_device_clock(recording: Any, tmp_path: Path, measured: bool) -> None:
    """Where every span of the sampled steps has a device time, those are added up; times of two clocks are not mixed."""
    trace = recording.trace()
    request = recording.span("text_completion tiny", 0, 10, trace=trace)
    facts: dict[str, Any] = {semconv.PHASE: "prefill"}
    phase = recording.span("prefill", 0, 10, trace=trace, parent=request, attributes=facts)
    facts[semconv.STEP_INDEX] = 0
    step = recording.span("prefill_step", 1, 4, trace=trace, parent=phase, attributes={**facts, semconv.DEVICE_TIME: 0.008})
    for layer, seconds in enumerate((0.003, 0.004)):
        attributes = {**facts, semconv.MODULE_NAME: f"layers.{layer}", semconv.MODULE_TYPE: "TinyLayer", semconv.MODULE_LAYER_INDEX: layer}
        if measured or layer:
            attributes[semconv.DEVICE_TIME] = seconds
        recording.span(f"layer {layer}", 1 + layer, 1, trace=trace, parent=step, attributes=attributes)
    (found,) = page_data(render(read_session(recording.write(tmp_path / "session.jsonl"))))["requests"][0]["breakdowns"]
    host = ("host", 0.004, 0.002, [[0, 0.001], [1, 0.001]])
    device = ("device", 0.008, 0.001, [[0, 0.003], [1, 0.004]])
    clock, seconds, outside, layers = device if measured else host
    assert found["clock"] == clock
    assert (found["seconds"], found["outside"]) == (pytest.approx(seconds), pytest.approx(outside))
    assert found["layers"] == [[layer, pytest.approx(value)] for layer, value in layers]


def test_absent_values_say_why(session_path: Path) -> None:
    """Texts that were not captured and tokens of a failed request come with the reason."""
    requests = page_data(render(read_session(session_path)))["requests"]
    assert requests[0]["tokenReasons"] == []
    assert [reason.split(":")[0] for reason in requests[1]["tokenReasons"]] == ["Texts are absent"]
    assert requests[2]["tokenReasons"] == ["No token was recorded: the request failed before its end."]


def test_hostile_text_stays_text(recording: Any, fail: Callable[..., str], tmp_path: Path) -> None:
    """Markup in names, messages, metrics and the title is data: the page has exactly its own three scripts' ends."""
    fail(recording, 0, HOSTILE)
    recording.spans[0]["name"] = HOSTILE
    recording.metric(HOSTILE, "gauge", HOSTILE, [{"asDouble": 1.0, "timeUnixNano": "1"}])
    page = render(read_session(recording.write(tmp_path / "session.jsonl")), title=HOSTILE + "@@data@@")
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert page_data(page)["requests"][0]["message"] == HOSTILE


def test_the_page_needs_no_network(session_path: Path) -> None:
    """No address stands in the page but a name space, and its policy forbids every connection."""
    page = render(read_session(session_path))
    assert set(re.findall(r"https?://[^\s\"'<>]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page
    assert not re.search(r"<(link|script|img|iframe)[^>]+(href|src)=(?!\"data:)", page)


def test_detail_over_the_budget_is_left_out_and_said(session_path: Path) -> None:
    """A page has a bounded number of spans; requests past it keep their figures."""
    data = payload(read_session(session_path), budget=5)
    kept = [sum(1 + len(step["calls"]) for phase in request["phases"] for step in phase["steps"]) for request in data["requests"]]
    assert kept == [5, 0, 0]
    assert [request["detailLeftOut"] for request in data["requests"]] == [True, True, False]
    assert [request["row"]["output_tokens"] for request in data["requests"]] == [3, 5, None]


def test_rows_of_a_batch_have_their_own_tokens(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Values per row come from the steps, cut to each row's own length."""
    generate(recording, 0)
    for span in recording.spans:
        if span["name"].endswith("_step"):
            rows = {"arrayValue": {"values": [{"doubleValue": -1.0}, {"doubleValue": -2.0}]}}
            span["attributes"].append({"key": semconv.LOGITS_ROWS[semconv.LOGITS_CHOSEN_LOGPROB], "value": rows})
        for item in span["attributes"]:
            if item["key"] == semconv.SEQUENCE_OUTPUT_TOKENS:
                item["value"] = {"arrayValue": {"values": [{"intValue": "3"}, {"intValue": "2"}]}}
    data = payload(read_session(recording.write(tmp_path / "session.jsonl")))
    place = data["tokenFields"].index("logprob")
    assert [[token[place] for token in row] for row in data["requests"][0]["tokens"]] == [[-0.1, -0.2, -0.3], [-2.0, -2.0]]


def test_writing_replaces_the_file_whole(session_path: Path, tmp_path: Path) -> None:
    """An older report is replaced, nothing else is left in the folder, and a missing folder is an error."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "report.html").write_text("old")
    write_report(read_session(session_path), folder / "report.html", title="My run")
    assert [path.name for path in folder.iterdir()] == ["report.html"]
    assert "<title>My run - inferspan</title>" in (folder / "report.html").read_text()
    with pytest.raises(FileNotFoundError):
        write_report(read_session(session_path), tmp_path / "missing" / "report.html")


def test_a_report_is_for_its_owner(session_path: Path, tmp_path: Path) -> None:
    """Prompts and outputs may stand in it, so nobody else may read it, whatever the umask and an older report say."""
    output = tmp_path / "report.html"
    output.write_text("old")
    output.chmod(0o644)
    previous = os.umask(0)
    try:
        write_report(read_session(session_path), output)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


@pytest.mark.parametrize("exists", [True, False], ids=["to a file", "dangling"])
def test_a_planted_link_is_replaced(session_path: Path, tmp_path: Path, exists: bool) -> None:
    """A link at the place of the report becomes the report; what it points to is not touched."""
    target, output = tmp_path / "precious", tmp_path / "report.html"
    if exists:
        target.write_text("precious")
    output.symlink_to(target)
    write_report(read_session(session_path), output)
    assert (target.read_text() if exists else target.exists()) == ("precious" if exists else False)
    assert not output.is_symlink()
    assert "</html>" in output.read_text()


def test_a_loop_of_links_is_replaced(session_path: Path, tmp_path: Path) -> None:
    """A link to itself does not stop the report."""
    output = tmp_path / "report.html"
    output.symlink_to(output)
    write_report(read_session(session_path), output)
    assert "</html>" in output.read_text()


def test_a_report_that_cannot_be_written_leaves_nothing(session_path: Path, tmp_path: Path) -> None:
    """After a failure no temporary file is left in the folder."""
    folder = tmp_path / "out"
    (folder / "report.html").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_report(read_session(session_path), folder / "report.html")
    assert [path.name for path in folder.iterdir()] == ["report.html"]


@pytest.mark.parametrize("redirected", [True, False], ids=["to a file", "to a pipe"])
def test_standard_output_takes_the_page(session_path: Path, tmp_path: Path, redirected: bool) -> None:
    """``/dev/stdout`` is written to and not replaced, wherever it leads."""
    code = (
        "import sys; from inferspan.report.html import write_report; from inferspan.report.session import read_session;"
        "write_report(read_session(sys.argv[1]), '/dev/stdout')"
    )
    command = [sys.executable, "-c", code, str(session_path)]
    if redirected:
        with (tmp_path / "page.html").open("wb") as stream:
            subprocess.run(command, stdout=stream, check=True)
        page = (tmp_path / "page.html").read_text()
    else:
        page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert Path("/dev/stdout").is_symlink()


def test_lone_surrogates_do_not_stop_the_page(recording: Any, tmp_path: Path) -> None:
    """Half a character in a title, a model's name or a file's name is replaced."""
    recording.span("forward \ud800", 0, 1, trace=recording.trace(), attributes={semconv.MODEL_NAME: "m\ud800"})
    path = recording.write(tmp_path / "s\udcff.jsonl")
    for title in ("t\udcff", None):
        write_report(read_session(path), tmp_path / "report.html", title=title)
        assert f"<title>{title[0] if title else 'm'}? - inferspan</title>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def drawn_page(session_file: Path, folder: Path) -> str:
    """What a session's report shows after its script has run."""
    path = write_report(read_session(session_file), folder / "report.html")
    assert BROWSER is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    command = [BROWSER, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>owned" not in page
    return page.split('<main id="page">')[1].split("</main>")[0]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_draws_every_request(recording: Any, generate: Callable[..., str], fail: Callable[..., str], tmp_path: Path) -> None:
    """The script runs to its end on hostile names: all requests are listed, tokens are drawn, no markup came alive."""
    generate(recording, 0, tokens=12, content=True)
    fail(recording, 500, HOSTILE)
    recording.spans[0]["name"] = "chat " + HOSTILE
    recording.metric("m", "gauge", "By", [{"asDouble": float(n), "timeUnixNano": str(n * 10**9)} for n in range(3)])
    drawn = drawn_page(recording.write(tmp_path / "session.jsonl"), tmp_path)
    assert drawn.count('<tr tabindex="0"') == 2
    assert drawn.count('class="token"') == 12
    assert "show the other 3 steps" in drawn
    assert "prefill: the prompt" in drawn
    assert "Written by inferspan" in drawn
    assert "<img" not in drawn


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_plain_forward_has_no_phases(recording: Any, tmp_path: Path) -> None:
    """A forward pass is drawn without the legend of prefill and decode, and counts are in the singular where they are one."""
    request = recording.span("forward tiny", 0, 10, trace=(trace := recording.trace()), attributes={semconv.SPANS_DROPPED: 1})
    recording.span(
        "layer 0", 1, 5, trace=trace, parent=request, attributes={semconv.MODULE_NAME: "layers.0", semconv.MODULE_TYPE: "TinyLayer"}
    )
    drawn = drawn_page(recording.write(tmp_path / "session.jsonl"), tmp_path)
    assert "TinyLayer" in drawn
    assert "prefill: the prompt" not in drawn
    assert "1 span of this request left out over its span budget" in drawn


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (
            {semconv.DETAIL_KEPT: False, semconv.DETAIL_RULE: "slow,errors", semconv.DETAIL_SPANS: 1, semconv.OUTPUT_TOKENS: 3},
            ["Detail not kept (keep=slow,errors): 1 span of phases", "the detail was not kept (keep=slow,errors)."],
        ),
        ({semconv.DETAIL_KEPT: True, semconv.DETAIL_RULE: "slow"}, ["Detail kept because of: slow (setting keep)."]),
    ],
)
def test_a_request_says_what_became_of_its_detail(recording: Any, tmp_path: Path, decision: dict[str, Any], words: list[str]) -> None:
    """Instead of an empty timeline stands the rule by which there is none; a kept request says why it was kept."""
    operation = {semconv.OPERATION_NAME: "text_completion", semconv.REQUEST_MODEL: "tiny/model"}
    recording.span("text_completion tiny/model", 0, 10, trace=recording.trace(), attributes={**operation, **decision})
    drawn = drawn_page(recording.write(tmp_path / "session.jsonl"), tmp_path)
    assert all(text in drawn for text in words)
