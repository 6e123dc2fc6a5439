"""Dashboards' queries asked of the real servers as Grafana asks them, and what is wrong with the answers.

In: ``Asked`` queries, a stack and a moment. Out: one text per problem; no text means that the panel has something to show, in its unit.
"""

from __future__ import annotations

import json
import math
import re
import urllib.error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grafana.generator import units
from tests.integration.dashboards.panel_queries import Asked, Values, Variable, fill, legend_labels, used_variables
from tests.integration.servers import Stack, get_json

__all__ = ["RANGES", "Asker", "Series"]

SHORTEST = 60
"""Seconds that rates look back at least."""
STEP = 5

_BEFORE = re.compile(r"offset \$\{?(\w+)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

HUGE = 1e15
RANGES: Mapping[str, tuple[float, float]] = {
    "percentunit": (0, 1),
    "percent": (0, 100),
    "s": (0, 3600),
    "ms": (0, 3.6e6),
    "dateTimeAsIso": (1.6e12, 4e12),
    "celsius": (0, 120),
    "watt": (0, 2000),
    "joule": (0, 1e7),
    "kwatth": (0, 10),
    "hertz": (0, 1e10),
    "rothz": (0, 1e6),
    "rotrpm": (0, 1e5),
    "bytes": (0, HUGE),
    "decbytes": (0, HUGE),
    "Bps": (0, HUGE),
    "binBps": (0, HUGE),
    "reqps": (0, 1e5),
    "ops": (0, 1e7),
    "cps": (0, 1e7),
    "short": (0, HUGE),
    "none": (0, HUGE),
    **dict.fromkeys(units.OWN, (0.0, 1e7)),
    units.FLOPS: (0.0, 1e15),
    units.DEVIATIONS: (-1e9, 1e9),
    "locale": (0, HUGE),
    "bool_on_off": (0, 1),
}
"""What a value may be in each unit that panels use; a unit that is not here is a problem."""


@dataclass(frozen=True)
class Series:
    """Labels, and every value of the time asked for."""

    labels: Mapping[str, str]
    values: tuple[float, ...]

    @cached_property
    def finite(self) -> tuple[float, ...]:
        """The values that can be drawn."""
        return tuple(value for value in self.values if math.isfinite(value))


class Asker:
    """Asks one stack at one moment.

    Args:
        stack: the servers.
        at: the moment at which instant queries are evaluated and ranges end.
        window: length of ranges in seconds.
    """

    def __init__(self, stack: Stack, *, at: float, window: float) -> None:
        self._stack = stack
        self._at = at
        self._window = window
        seconds = max(SHORTEST, int(window))
        self._builtin = {
            "__rate_interval": f"{seconds}s",
            "__interval": f"{STEP}s",
            "__interval_ms": f"{STEP}000",
            "__range": f"{seconds}s",
            "__range_s": f"{seconds}",
            "__range_ms": f"{seconds}000",
        }
        """The whole run, however long a busy machine takes for it."""

    # -------------------------------------------------------------------------------------------------------- variables
    def options(self, variable: Variable, chosen: Values, known: Mapping[str, Variable]) -> list[str]:
        """What a variable offers, given the values of those before it."""
        if variable.type != "query":
            return [option for option in variable.options if option]
        text = fill(variable.query, chosen, known, builtin=self._builtin)
        found = self._label_values(text) if text.startswith("label_values(") else self._query_result(text)
        if not variable.regex:
            return found
        pattern = re.compile(variable.regex.strip("/"))
        matches = [match for match in map(pattern.search, found) if match]
        return list(dict.fromkeys(match.groupdict().get("value") or (match[1] if pattern.groups else match[0]) for match in matches))

    def _label_values(self, text: str) -> list[str]:
        inside = text.removeprefix("label_values(").rstrip().removesuffix(")")
        selector, _, label = inside.rpartition(",")
        parameters = {"match[]": selector.strip()} if selector else {}
        url = f"{self._stack.prometheus}/api/v1/label/{label.strip()}/values"
        return list(get_json(url, start=self._at - self._window, end=self._at, **parameters)["data"])

    def _query_result(self, text: str) -> list[str]:
        found = re.fullmatch(r"query_result\((.+)\)", text.strip(), re.DOTALL)
        assert found, f"a variable's query of no known kind: {text}"
        return [
            "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + f"}} {value}"
            for labels, value in self._stack.query(found[1], at=self._at)
        ]

    # ----------------------------------------------------------------------------------------------------------- panels
    def series(self, asked: Asked, values: Values, known: Mapping[str, Variable]) -> list[Series]:
        """The answer of Prometheus; an ``AssertionError`` with its message if it refuses."""
        expression = fill(asked.expression, values, known, builtin=self._builtin)
        left = used_variables(expression)
        assert not left, f"unknown variables {sorted(left)}"
        try:
            return list(self._asked(expression, instant=asked.instant, at=self._at + _shift(asked, values)))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}\n  {json.load(error).get('error')}") from None

    def _asked(self, expression: str, *, instant: bool, at: float) -> Iterator[Series]:
        api = f"{self._stack.prometheus}/api/v1/"
        if instant:
            answer = get_json(f"{api}query", query=expression, time=at)["data"]
            assert answer["resultType"] == "vector", f"{expression} gives a {answer['resultType']}"
            yield from (Series(item["metric"], (float(item["value"][1]),)) for item in answer["result"])
        else:
            # Whole steps, so that the last value is that of the end.
            start = at - math.ceil(self._window / STEP) * STEP
            answer = get_json(f"{api}query_range", query=expression, start=start, end=at, step=STEP)["data"]
            yield from (Series(item["metric"], tuple(float(value) for _, value in item["values"])) for item in answer["result"])

    def empty(self, asked: Asked, values: Values, known: Mapping[str, Variable]) -> bool:
        """Whether a panel would show nothing."""
        return not any(series.finite for series in self.series(asked, values, known))

    def problems(self, asked: Asked, values: Values, known: Mapping[str, Variable]) -> list[str]:
        """What is wrong with the answer to one query."""
        try:
            answer = self.series(asked, values, known)
        except AssertionError as error:
            return [f"{asked.where}: {error}"]
        if not any(series.finite for series in answer):
            what = "only NaN" if answer else "no series"
            return [f"{asked.where}: {what} for {fill(asked.expression, values, known, builtin=self._builtin)}"]
        labels = {label for series in answer for label in series.labels}
        found = [
            f"legend names {label!r}, series have {sorted(labels)}"
            for label in legend_labels(fill(asked.legend, values, known, builtin=self._builtin))
            if label not in labels
        ]
        if asked.heatmap and any("le" not in series.labels for series in answer):
            found.append("a heat map of series without le")
        if asked.unit not in RANGES:
            return [f"{asked.where}: {text}" for text in (*found, f"unit {asked.unit!r} is not known")]
        low, high = (0.0, HUGE) if asked.heatmap else RANGES[asked.unit]  # a heat map counts; its unit is that of the buckets
        outside = [value for series in answer for value in series.values if not math.isnan(value) and not low <= value <= high + 1e-9]
        if outside:
            found.append(f"{len(outside)} values such as {outside[0]} are no {asked.unit} from {low} to {high}")
        return [f"{asked.where}: {text}" for text in found]

    # ----------------------------------------------------------------------------------------------------------- traces
    def traces(self, search: Mapping[str, Any], values: Values, known: Mapping[str, Variable]) -> list[dict[str, Any]]:
        """What Jaeger finds for a search, with the parameters that Grafana's Jaeger data source sends."""
        filled = {
            key: fill(value, values, known, builtin=self._builtin, escape=False) if isinstance(value, str) else value
            for key, value in search.items()
        }
        if filled.get("queryType") != "search":
            known_trace = self._stack.traces(str(self._services()[0]))[0]["traceID"]
            return [{"spans": self._stack.trace(filled["query"].replace("${__value.raw}", known_trace))}]
        parameters = {name: filled[name] for name in ("service", "operation", "minDuration", "maxDuration", "limit") if filled.get(name)}
        if parameters.get("operation") == "All":
            del parameters["operation"]
        if filled.get("tags"):
            parameters["tags"] = json.dumps(dict(_logfmt(filled["tags"])))
        start, end = int((self._at - self._window) * 1e6), int(self._at * 1e6)
        return self._stack.search(**parameters, start=start, end=end, lookback="custom")

    def _services(self) -> list[str]:
        return [name for name in get_json(f"{self._stack.jaeger}/api/services")["data"] if name]


def _shift(asked: Asked, values: Values) -> float:
    """By how much later a query has to be asked that looks back by a variable: then what ran here is what it looks back at."""
    found = _BEFORE.search(asked.expression)
    return int(str(values[found[1]])[:-1]) * _SECONDS[str(values[found[1]])[-1]] if found else 0


def _logfmt(text: str) -> Iterator[tuple[str, str]]:
    for found in re.finditer(r'([^\s=]+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))', text):
        yield found[1], found[2] if found[2] is not None else found[3]
