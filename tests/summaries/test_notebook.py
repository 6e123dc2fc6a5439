"""How notebooks and terminals show handles, sessions, summaries and requests."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import inferspan
from tests.cases import models

HOSTILE = '<script>alert(1)</script><b onclick="x">'


@pytest.fixture
def shown(record: Any) -> Any:
    """A handle, a session and a request, with names that are HTML."""
    model = models.llama()
    handle = record(model, model_name=HOSTILE, output_stats=True)
    with inferspan.session(HOSTILE) as session, inferspan.stage(HOSTILE), torch.no_grad():
        model.generate(models.prompt(1, 6), max_new_tokens=5, min_new_tokens=5, do_sample=False)
    return handle, session, handle.last_request


def _elements(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{text}</div>")


@pytest.mark.parametrize("place", [0, 1, 2], ids=["handle", "session", "request"])
def test_names_are_text(shown: Any, place: int) -> None:
    """Names of models, sessions and stages are shown as they are, and none becomes an element."""
    found = _elements(shown[place]._repr_html_())
    assert not [element for element in found.iter() if element.tag in ("script", "b") and element.get("onclick")]
    assert "script" not in {element.tag for element in found.iter()}
    assert HOSTILE in "".join(found.itertext())


@pytest.mark.parametrize("place", [0, 1, 2], ids=["handle", "session", "request"])
def test_timeline(shown: Any, place: int) -> None:
    """Phases and steps of the last request are bars with their name and duration."""
    found = _elements(shown[place]._repr_html_())
    titles = [title.text or "" for title in found.iter("title")]
    names = [title.rpartition(":")[0] for title in titles]
    assert names.count("prefill") == names.count("decode") == names.count("prefill_step") == 1
    assert names.count("decode_step") == 4
    assert any(title.startswith("first token after") for title in titles)


def test_bars_lie_in_the_picture(shown: Any) -> None:
    """No bar is without width, and none leaves the picture."""
    (svg,) = _elements(shown[2]._repr_html_()).iter("svg")
    width = float(svg.get("viewBox", "").split()[2])
    for bar in svg.iter("rect"):
        left, size = float(bar.get("x", "")), float(bar.get("width", ""))
        assert size > 0 and left >= 0 and left + size <= width + 1


def test_a_summary_has_its_tables(shown: Any) -> None:
    """Operations, types of events and outputs of modules are tables."""
    handle, session, _ = shown
    for summary in (handle.summary(), session.summary()):
        text = " ".join(_elements(summary._repr_html_()).itertext())
        for told in ("step decode_step", "generation_complete", "model.layers.0.mlp (LlamaMLP)", "mean "):
            assert told in text


def test_nothing_is_loaded(shown: Any) -> None:
    """The HTML has no script, no style sheet and no address."""
    for one in shown:
        assert not re.search(r"https?:|<link|<style|src=|url\(", one._repr_html_())


def test_as_a_rich_table(shown: Any) -> None:
    """Rich prints the table of operations; in a narrow terminal it has fewer columns, and no figure is cut."""
    console = pytest.importorskip("rich.console")
    handle, _, _ = shown
    printed = {}
    for width in (80, 160):
        out = io.StringIO()
        console.Console(file=out, width=width).print(handle.summary())
        printed[width] = out.getvalue()
    assert "own s" in printed[160] and "own s" not in printed[80]
    assert "…" not in printed[80] and "decode_step" in printed[80]


def test_without_rich(shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is plain text where rich is not installed."""
    for name in ("rich.table", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    table = shown[0].summary().table()
    assert isinstance(table, str) and table.splitlines()[0].split()[:3] == ["operation", "count", "total"]


def test_as_text_and_json(shown: Any) -> None:
    """The text has totals, types, modules and operations; the JSON has the same figures."""
    found = shown[0].summary()
    lines = found.text().splitlines()
    assert lines[0] == str(found) and f"total events: {found.total_events:,}" in lines
    read = json.loads(found.to_json(2))
    assert read == json.loads(json.dumps(found.as_dict()))
    assert read["requests"]["output_tokens"] == 5 and read["total_events"] == sum(read["event_types"].values())
    assert {row["name"]: row["calls"] for row in read["modules"]}["model.layers.0"] == found.operation("module", "model.layers.0").count


def test_control_characters_never_reach_a_terminal(record: Any) -> None:
    """A name with control characters is text without them."""
    model = torch.nn.Linear(2, 2)
    handle = record(model, modules="none")
    with inferspan.stage("a\x1b[31mb\r"):
        model(torch.zeros(1, 2))
    assert "\x1b" not in handle.summary().text() and "\r" not in handle.summary()._repr_html_()
