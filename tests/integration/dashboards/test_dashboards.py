"""No panel says "No data": every query of every dashboard is asked of real servers, whichever way telemetry came there.

Programs have served models on recorded cards, with failures and NaN among the requests (``served``). A query has to give series, in the
range of its unit, with the labels that its legend names, for all values of each variable together and for single ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.dashboards.answers import Asker
from tests.integration.dashboards.panel_queries import (
    ALL,
    Asked,
    Values,
    Variable,
    dashboards,
    explored,
    labels_named,
    leaves,
    links,
    queries,
    queries_of_annotations,
    used_variables,
    variables,
)
from tests.integration.dashboards.served import Served

pytestmark = pytest.mark.integration

PATHS = ("push", "scrape", "fleet")
UIDS = ("inferspan-overview", "inferspan-gpu", "inferspan-model", "inferspan-fleet")
OF_AGENTS = ("Load", "Disk", "Network", "Network errors", "Paging", "File systems")
EMPTY: Mapping[tuple[str, str], str] = {
    (path, where): reason
    for path in ("push", "scrape")
    for where, reason in {
        "inferspan-overview / Gateway: sampling /": "only a gateway samples traces",
        **{f"inferspan-gpu / {panel} /": "only an agent measures hosts as a whole" for panel in OF_AGENTS},
    }.items()
}
"""Reason why a query gives nothing, by way and beginning of its place; as few as can be, and each is checked to be empty indeed."""

RAN: Mapping[tuple[str, str], float] = {
    ("inferspan-gpu", "GPUs"): 3,
    ("inferspan-fleet", "Processes"): 3,
    ("inferspan-fleet", "Missing ranks"): 0,
    ("inferspan-fleet", "Versions"): 2,
    ("inferspan-fleet", "In flight"): 0,
}
"""What panels of one number have to say of the programs of ``served``."""
ONLY_OF_SPLIT_CARDS = {"hw_parent"}


class Board:
    """A dashboard on one way, with what its variables offer there."""

    def __init__(self, served: Served, path: str, uid: str) -> None:
        self.dashboard = dashboards()[uid]
        self.known = {variable.name: variable for variable in variables(self.dashboard)}
        self.asker = Asker(served[path], at=served.at, window=served.window)
        self.options: dict[str, list[str]] = {}
        for name, variable in self.known.items():
            self.options[name] = self.asker.options(variable, self.whole(), self.known)

    def whole(self) -> Values:
        """All, where that or several values may be chosen; else the preset or the first value."""
        return {name: self._widest(variable) for name, variable in self.known.items() if name in self.options}

    def _widest(self, variable: Variable) -> Any:
        options = self.options[variable.name]
        if variable.include_all and variable.all_value:
            return ALL
        return options if variable.include_all or variable.multi else variable.preset or (options[0] if options else "")

    def single(self, name: str) -> Iterator[Values]:
        """``All`` of everything but one variable, which takes each of its values in turn."""
        for option in self.options[name]:
            yield {**self.whole(), name: [option] if self.known[name].multi else option}

    def asked(self, source: str) -> list[Asked]:
        """The queries of panels and annotations for one kind of data source."""
        return [each for each in (*queries(self.dashboard), *queries_of_annotations(self.dashboard)) if each.source == source]


@pytest.fixture(scope="module")
def boards(served: Served) -> Mapping[tuple[str, str], Board]:
    """Every dashboard on every way."""
    return {(path, uid): Board(served, path, uid) for path in PATHS for uid in dashboards()}


def test_all_dashboards_are_there() -> None:
    """The four dashboards are what is tested here."""
    assert sorted(dashboards()) == sorted(UIDS)


@pytest.mark.parametrize("uid", UIDS)
@pytest.mark.parametrize("path", PATHS)
def test_variables_offer_values(boards: Mapping[tuple[str, str], Board], path: str, uid: str) -> None:
    """Every variable has something to choose."""
    board = boards[path, uid]
    optional = {name for name, variable in board.known.items() if variable.type == "textbox"}
    assert [name for name, options in board.options.items() if not options and name not in optional] == []


def _reason(path: str, asked: Asked) -> str | None:
    return next((reason for (way, where), reason in EMPTY.items() if way == path and asked.where.startswith(where)), None)


@pytest.mark.parametrize("uid", UIDS)
@pytest.mark.parametrize("path", PATHS)
def test_every_query_gives_series(boards: Mapping[tuple[str, str], Board], path: str, uid: str) -> None:
    """With All chosen everywhere, and for each value that a panel or row is repeated by, every query has a plausible answer."""
    board = boards[path, uid]
    problems = []
    for asked in board.asked("prometheus"):
        chosen = board.single(asked.repeated_by) if asked.repeated_by else [board.whole()]
        found = [problem for values in chosen for problem in board.asker.problems(asked, values, board.known)]
        reason = _reason(path, asked)
        if reason is None:
            problems += found
        elif not found:
            problems.append(f"{asked.where} gives series, so it is not to be listed as empty ({reason})")
    assert problems == []


@pytest.mark.parametrize("uid", UIDS)
@pytest.mark.parametrize("path", PATHS)
def test_single_values_of_variables_give_series(boards: Mapping[tuple[str, str], Board], path: str, uid: str) -> None:
    """For each variable in a query at least one of its values, chosen alone, leaves series in the answer."""
    board = boards[path, uid]
    problems = []
    for asked in board.asked("prometheus"):
        if _reason(path, asked) is not None:
            continue
        for name in sorted(used_variables(asked.text) & board.options.keys()):
            if all(board.asker.empty(asked, values, board.known) for values in board.single(name)):
                problems.append(f"{asked.where}: nothing for any single {name} of {board.options[name]}")
    assert problems == []


@pytest.mark.parametrize("uid", UIDS)
@pytest.mark.parametrize("path", PATHS)
def test_links_and_columns_name_labels_of_their_series(boards: Mapping[tuple[str, str], Board], path: str, uid: str) -> None:
    """A link takes only labels that a series of its panel has, a table has a column for them, and its queries merge into one row each."""
    board = boards[path, uid]
    asked = board.asked("prometheus")
    titles = {panel["id"]: panel["title"] for panel, _ in leaves(board.dashboard["panels"])}
    tables = {panel["id"] for panel, _ in leaves(board.dashboard["panels"]) if panel["type"] == "table"}
    problems = []
    for number, names in labels_named(board.dashboard):
        title = titles[number]
        answers = [board.asker.series(each, board.whole(), board.known) for each in asked if each.panel == number]
        labels = [{label for series in answer for label in series.labels} for answer in answers]
        if names - set().union(*labels) - ONLY_OF_SPLIT_CARDS:
            problems.append(f"{title}: no series has {sorted(names - set().union(*labels))}")
        differing = {label for each in labels for label in each ^ labels[0]}
        if number in tables and differing:
            problems.append(f"{title}: rows of its queries differ in {sorted(differing)}")
    assert problems == []


@pytest.mark.parametrize("uid", UIDS)
@pytest.mark.parametrize("path", PATHS)
def test_every_search_gives_traces(boards: Mapping[tuple[str, str], Board], path: str, uid: str) -> None:
    """Jaeger finds what trace tables and links search for, for at least one service and one bound of slowness."""
    board = boards[path, uid]
    searches = [(asked.where, asked.search) for asked in board.asked("jaeger")]
    searches += [
        (where, query) for where, url in links(board.dashboard) for query in explored(url) if query["datasource"]["type"] == "jaeger"
    ]
    assert [f"{where}: nothing found for {search}" for where, search in searches if not _finds(board, search)] == []


def _finds(board: Board, search: Mapping[str, Any]) -> bool:
    used = used_variables(str(dict(search))) & board.known.keys()
    several = [name for name in sorted(used) if board.known[name].multi]
    assert several == [], f"Jaeger searches one service at a time, {several} may be several"
    chosen = [[(name, option) for option in board.options[name]] for name in sorted(used)]
    return any(board.asker.traces(search, {**board.whole(), **dict(choice)}, board.known) for choice in product(*chosen))


@pytest.mark.parametrize("path", ["push", "scrape"])
@pytest.mark.parametrize(
    "span", ["load", "read", "session round", "look", "vision_encode", "fusion", "batch tiny-batched", "layer 0 mlp.gate"]
)  # fmt: skip
def test_spans_of_every_kind_are_in_jaeger(served: Served, path: str, span: str) -> None:
    """Loads, sessions, stages of the program and of models, shared steps and routers have arrived; a gateway keeps a sample of them."""
    assert served[path].search(service="ranks", operation=span, limit=1, start=int(served.begun * 1e6), end=int(served.at * 1e6)) != []


def _number(board: Board, title: str) -> float:
    (asked,) = [each for each in board.asked("prometheus") if f" / {title} /" in each.where]
    (series,) = board.asker.series(asked, board.whole(), board.known)
    return series.values[-1]


@pytest.mark.parametrize("path", PATHS)
def test_single_numbers_say_what_ran(boards: Mapping[tuple[str, str], Board], path: str) -> None:
    """Cards that two processes see count once; ranks and versions are those that ran."""
    assert {(uid, title): _number(boards[path, uid], title) for uid, title in RAN} == RAN


def test_rates_count_from_the_beginning(served: Served, boards: Mapping[tuple[str, str], Board]) -> None:
    """A push tells when a series began, so the first failure counts as well."""
    share = served.failed / sum(served.requests.values())
    assert _number(boards["push", "inferspan-overview"], "Error ratio") == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("uid", UIDS)
def test_links_lead_to_dashboards(uid: str) -> None:
    """Every link to a dashboard names one that exists, and passes only variables that it has."""
    there = dashboards()
    problems = []
    for where, url in links(there[uid]):
        parts = urlsplit(url)
        kept = set(re.findall(r"\$\{(\w+):queryparam\}", url))
        problems += [
            f"{where}: no variable {name} here" for name in sorted(kept - {item["name"] for item in there[uid]["templating"]["list"]})
        ]
        if not parts.path.startswith("/d/"):
            continue
        target = there.get(parts.path.split("/")[2])
        if target is None:
            problems.append(f"{where}: no dashboard {parts.path}")
            continue
        has = {variable["name"] for variable in target["templating"]["list"]}
        passed = {part.partition("=")[0].removeprefix("var-") for part in parts.query.split("&") if part.startswith("var-")}
        problems += [f"{where}: {target['uid']} has no variable {name}" for name in sorted(passed - has)]
    assert problems == []
