"""Two ranks on gloo with profiler windows: time in collectives on steps, modules and requests, and waiting for a rank that is slow."""

from __future__ import annotations

import pytest

from inferspan import semconv
from inferspan.analysis.collectives import profiled_pass
from inferspan.analysis.levels import MODULE, level_of
from inferspan.report.overview import request_rows
from inferspan.report.session import Session, Span
from inferspan.report.terminal import summary
from tests.capture.ranks.launch import ran
from tests.capture.ranks.profiled_job import PASSES, PAUSE
from tests.support.versions import needs_torch

pytestmark = needs_torch(2, 6, reason="the job divides models in ways that torch has since 2.6")
DIVIDED = ("plain", "mesh", "tp_plan", "fsdp")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Both ranks have run every way."""
    return ran("profiled_job", tmp_path_factory.mktemp("profiled"))


def _passes(session: Session, kind: str, rank: int) -> list[Span]:
    """Spans of the profiled passes of one way."""
    requests = [request for request in session.requests if request.model == kind and request.number(semconv.RANK) == rank]
    return [span for request in requests for span in (request.span, *request.steps) if profiled_pass(span) is not None]


def _below(span: Span) -> list[Span]:
    return [span, *(found for child in span.children for found in _below(child))]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", DIVIDED)
def test_profiled_passes_have_time_in_collectives(session: Session, kind: str, rank: int) -> None:
    """However the model was divided; never more than the pass took."""
    found = _passes(session, kind, rank)
    assert len(found) == PASSES
    for span in found:
        assert 0 < span.attributes[semconv.PROFILER_COLLECTIVE_TIME] <= span.attributes[semconv.PROFILER_PASS_TIME]  # type: ignore[operator]


def test_a_model_of_one_rank_has_none(session: Session) -> None:
    """Absent, not zero."""
    found = _passes(session, "alone", 0)
    assert len(found) == PASSES
    assert not [span for top in found for span in _below(top) if semconv.PROFILER_COLLECTIVE_TIME in span.attributes]


@pytest.mark.parametrize("kind", ["plain", "mesh"])
def test_waiting_for_a_slow_rank_is_time_in_collectives(session: Session, kind: str) -> None:
    """The first rank pauses inside of the pass; the other one comes to the collective after that and waits there."""
    for span in _passes(session, kind, 1):
        assert float(span.attributes[semconv.PROFILER_COLLECTIVE_TIME]) > PAUSE / 5  # type: ignore[arg-type]


def test_a_pause_is_own_work_of_the_rank_that_pauses(session: Session) -> None:
    """Its passes are longer than their collectives by that."""
    for span in _passes(session, "plain", 0):
        found = profiled_pass(span)
        assert found is not None
        assert found.seconds - found.collective > 0.9 * PAUSE


def test_modules_have_the_collectives_that_began_in_them(session: Session) -> None:
    """The sum over the ranks is behind the projection that is divided by rows."""
    for span in _passes(session, "mesh", 1):
        modules = [one for one in _below(span) if level_of(one) == MODULE and semconv.PROFILER_COLLECTIVE_TIME in one.attributes]
        assert {"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"} <= {one.attributes[semconv.MODULE_NAME] for one in modules}


@pytest.mark.parametrize(("kind", "name"), [("plain", "gloo:all_reduce"), ("mesh", "gloo:all_reduce"), ("fsdp", "gloo:all_gather")])
def test_collectives_have_spans(session: Session, kind: str, name: str) -> None:
    """Of a kind of their own."""
    found = [span for top in _passes(session, kind, 1) for span in _below(top) if span.attributes.get(semconv.PROFILER_KIND) == "collective"]
    assert name in {span.name for span in found}


def test_the_row_of_each_rank_says_how_much_it_is(session: Session) -> None:
    """Of requests with profiled passes."""
    rows = [row for row in request_rows(session) if row.model == "mesh" and row.collectives is not None]
    assert sorted(note for row in rows for note in row.notes if note.startswith("rank")) == ["rank 0", "rank 1"]
    assert all(f"{100 * (row.collectives or 0):.0f} % in collectives" in row.notes for row in rows)


def test_the_text_has_a_line_for_each_rank(session: Session) -> None:
    """Over all profiled passes."""
    lines = [line for line in summary(session).splitlines() if line.endswith(f"% of {5 * PASSES} profiled passes in collectives")]
    assert [line.split(":")[0] for line in lines] == ["rank 0", "rank 1"]
