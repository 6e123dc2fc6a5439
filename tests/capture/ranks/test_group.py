"""Two ranks on gloo, started by torchrun: requests that both run together are one trace, requests with data of their own are not."""

from __future__ import annotations

import pytest

from inferspan import semconv
from inferspan.report.overview import request_rows, totals
from inferspan.report.session import Request, Session
from tests.capture.ranks.job import REQUESTS
from tests.capture.ranks.launch import ran
from tests.support.versions import needs_torch

pytestmark = needs_torch(2, 6, reason="the job divides models in ways that torch has since 2.6")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Both ranks have run every way."""
    return ran("job", tmp_path_factory.mktemp("ranks"))


def _of(session: Session, kind: str) -> tuple[list[Request], list[Request]]:
    """Requests of one way: those of the first rank, and those of the second."""
    found = [request for request in session.requests if request.model == kind]
    first, second = ([request for request in found if request.number(semconv.RANK) == rank] for rank in (0, 1))
    return first, second


@pytest.mark.parametrize("kind", ["mesh", "late", "served", "tp_plan", "forced"])
def test_requests_of_a_divided_model_are_one_trace(session: Session, kind: str) -> None:
    """The request of the second rank lies below that of the first, each below the one that ran at the same time."""
    first, second = _of(session, kind)
    assert len(first) == REQUESTS
    assert [request.span.parent_id for request in second] == [request.span.span_id for request in first]
    assert [request.span.trace_id for request in second] == [request.span.trace_id for request in first]
    assert {request.flag(semconv.RANKS_JOINED) for request in second} == {True}
    assert {request.flag(semconv.RANKS_JOINED) for request in first} == {False}


@pytest.mark.parametrize("kind", ["mesh", "tp_plan"])
def test_detail_moves_with_its_request(session: Session, kind: str) -> None:
    """Phases and steps of the second rank are in the joined trace."""
    for request in _of(session, kind)[1]:
        assert [phase.name for phase in request.phases] == ["prefill", "decode"]
        assert len(request.steps) == 4
        assert {span.trace_id for span in (*request.phases, *request.steps)} == {request.span.trace_id}


@pytest.mark.parametrize("kind", ["data", "fsdp", "separate"])
def test_requests_with_data_of_their_own_stay_apart(session: Session, kind: str) -> None:
    """Ranks of data parallelism answer different requests; the setting says the same of any model."""
    first, second = _of(session, kind)
    assert len({request.span.trace_id for request in (*first, *second)}) == 2 * REQUESTS
    assert not any(request.flag(semconv.RANKS_JOINED) for request in second)


def test_a_request_that_the_other_rank_has_not_recorded_takes_no_other(session: Session) -> None:
    """The second rank was paused for one of three requests: the others have joined the right ones."""
    first, second = _of(session, "paused")
    assert len(second) == REQUESTS - 1
    assert [request.span.parent_id for request in second] == [first[0].span.span_id, first[2].span.span_id]


def test_a_request_in_a_span_of_the_program_is_linked(session: Session) -> None:
    """Its trace is that of the program's span, which cannot be moved."""
    first, second = _of(session, "own span")
    assert [[link.span_id for link in request.span.links] for request in second] == [[request.span.span_id] for request in first]
    assert not {request.span.trace_id for request in first} & {request.span.trace_id for request in second}


def test_the_report_has_a_row_for_each_rank(session: Session) -> None:
    """Each says its rank, and the totals count a request that two ranks have run once."""
    rows = [row for row in request_rows(session) if row.model == "mesh"]
    assert sorted(note for row in rows for note in row.notes if note.startswith("rank")) == ["rank 0"] * REQUESTS + ["rank 1"] * REQUESTS
    assert totals(rows).requests == REQUESTS
