"""The tables of names: what the conventions and stores of telemetry ask of them, whatever is emitted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from docs import generate
from grafana.generator.catalogue import prometheus_name
from inferspan import semconv
from inferspan.settings import Settings

NAMES = sorted({attribute.key for attribute in semconv.ATTRIBUTES} | {key for metric in semconv.METRICS.values() for key in (metric.name, *metric.attributes)})
"""Every attribute and metric."""
IN_PROMETHEUS = {prometheus_name(metric) for metric in semconv.METRICS.values()}
OF_UNITS = (".sm.active", ".sm.occupancy", ".pipe.active", ".dram.active")
"""Of the units of a GPU, as the telemetry contract names them."""
ROOT = Path(__file__).resolve().parents[1]
CONTAINING = {"contain", "guard.contain", "guarded", "guard.guarded", "report", "guard.report", "guard.count"}
"""Functions whose first argument is the place of an error."""
PAGE = generate.pages()[Path(generate.__file__).with_name("telemetry.md")]


def test_no_name_of_ours_is_also_a_prefix() -> None:
    """Stores that nest names by their dots cannot hold ``a.b`` beside ``a.b.c``; the pairs of the conventions are not ours to change."""
    ours = [name for name in NAMES if name.startswith("inferspan.")]
    pairs = [(name, other) for name in ours for other in NAMES if other.startswith(f"{name}.")]
    assert pairs == []


@pytest.mark.parametrize("renamed", semconv.RENAMED, ids=lambda row: row.old)
def test_a_renamed_name_has_no_alias(renamed: semconv.Renamed) -> None:
    """The old name is gone from the tables, and the new one stands in them."""
    names = IN_PROMETHEUS.union(NAMES)
    assert renamed.old not in names
    assert renamed.new in names


@pytest.mark.parametrize("renamed", semconv.RENAMED, ids=lambda row: row.old)
def test_the_page_lists_what_changed(renamed: semconv.Renamed) -> None:
    """The page about telemetry says which name replaces the old one."""
    _, _, section = PAGE.partition("## Names that changed")
    assert f"| `{renamed.old}` | `{renamed.new}` |" in section


@pytest.mark.parametrize(("name", "unit"), [
    ("inferspan.gpu.pcie.link.generation", "{generation}"), ("inferspan.gpu.pcie.link.width", "{lane}"), ("inferspan.gpu.performance_state", "{level}"),
])  # fmt: skip
def test_a_count_or_level_has_an_annotation(name: str, unit: str) -> None:
    """A count or level is no ratio: its unit is an annotation, so that Prometheus adds no ``_ratio``."""
    assert semconv.METRICS[name].unit == unit
    assert not prometheus_name(semconv.METRICS[name]).endswith("_ratio")


def test_a_gauge_without_unit_is_a_share() -> None:
    """The unit ``1`` of a gauge is that of a ratio, from 0 to 1."""
    gauges = [metric.name for metric in semconv.METRICS.values() if metric.instrument.endswith("Gauge") and metric.unit == "1"]
    assert [name for name in gauges if not name.endswith(("utilization", "_ratio", ".activity", *OF_UNITS))] == []


def test_a_state_is_an_up_down_counter() -> None:
    """A metric with one point of 0 or 1 a state is an UpDownCounter, as ``hw.status`` is; its points can be summed."""
    kinds = {name: semconv.METRICS[name].instrument for name in ("hw.status", "inferspan.gpu.throttle.active")}
    assert set(kinds.values()) == {"ObservableUpDownCounter"}


def test_no_attribute_identifies_a_machine() -> None:
    """The serial number of a card is recommended by the conventions and not set: it identifies a machine, and ``hw.id`` joins already."""
    assert "hw.serial_number" not in NAMES
    assert "hw.id" in NAMES


@pytest.mark.parametrize("event", semconv.EVENTS, ids=lambda row: row.name)
def test_the_page_lists_every_event(event: semconv.Event) -> None:
    """The page about telemetry has a row for each event."""
    _, _, section = PAGE.partition("## Events")
    assert f"| `{event.name}` |" in section.partition("## ")[0]


def test_the_default_sends_old_and_new_names() -> None:
    """Dashboards in the field read the old names, so both are sent until somebody chooses."""
    assert Settings().semconv == "dup"


@pytest.mark.parametrize("fact", [
    "It stays the default until the GenAI\nconventions are stable",
    "It becomes the default in the first minor release after the conventions are stable",
    "It stays selectable until the next major release after that",
])  # fmt: skip
def test_the_page_says_how_long_old_names_stay(fact: str) -> None:
    """Whoever builds on the names can read which are sent by default, and until when."""
    _, _, section = PAGE.partition("## Old and new names of the GenAI conventions")
    assert " ".join(fact.split()) in " ".join(section.split())


def test_no_response_id_is_invented() -> None:
    """The id of a response stands in the table as what the caller says, nothing else sets it."""
    (row,) = [attribute for attribute in semconv.ATTRIBUTES if attribute.key == "gen_ai.response.id"]
    assert "inferspan.context(response_id=...)" in row.brief


def _places() -> Iterator[str]:
    """The places of contained errors that the code names; ``*`` stands for a part that it computes."""
    for file in (ROOT / "src" / "inferspan").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not node.args or ast.unparse(node.func) not in CONTAINING:
                continue
            place = node.args[0]
            if isinstance(place, ast.Constant):
                yield str(place.value)
            elif isinstance(place, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in place.values)


def test_every_place_of_an_error_is_in_the_table() -> None:
    """Each value of ``inferspan.error.place`` is documented."""
    known = [place for row in semconv.ERROR_PLACES for place in row.places]
    found = set(_places())
    assert len(found) > 80
    assert [place for place in sorted(found) if not any(fnmatchcase(place, pattern) for pattern in known)] == []


def test_every_place_in_the_table_is_in_the_code() -> None:
    """The table has no place that is not used any more."""
    code = "".join(file.read_text() for file in (ROOT / "src" / "inferspan").rglob("*.py") if file.name != "semconv.py")
    places = [place for row in semconv.ERROR_PLACES for place in row.places]
    assert [place for place in places if "*" not in place and f'"{place}"' not in code] == []
