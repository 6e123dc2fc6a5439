"""The queries that dashboards ask, taken out of their JSON and filled in as Grafana fills them in.

In: a dashboard (classic JSON) and the values of its variables. Out: ``Asked`` queries for Prometheus and Jaeger with everything that the
answer is judged by: unit, legend, heat map or not. Nothing is executed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = [
    "ALL",
    "Asked",
    "Values",
    "Variable",
    "dashboards",
    "explored",
    "fill",
    "labels_named",
    "leaves",
    "legend_labels",
    "links",
    "queries",
    "queries_of_annotations",
    "used_variables",
    "variables",
]

FOLDER = Path(__file__).resolve().parents[3] / "grafana" / "dashboards"
ALL = "$__all"
Values = Mapping[str, str | Sequence[str]]
"""A value of each variable: ``ALL`` where the variable has a text of its own for it, one text, or several."""

_NAME = r"[A-Za-z_]\w*"  # $1 is the label_replace of Prometheus
_REFERENCE = re.compile(rf"\$\{{({_NAME})(?::(\w+))?\}}|\$({_NAME})|\[\[({_NAME})\]\]")
_LEGEND = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
_LINKED = re.compile(r"\$\{__field\.labels\.(\w+)|\$\{__data\.fields\.(\w+)")
_SPECIAL = re.compile(r"[$^*{}\[\]'+?.()|\\]")


def dashboards(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Every dashboard of the project by its uid."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return {dashboard["uid"]: dashboard for dashboard in found}


@dataclass(frozen=True)
class Variable:
    """A variable of a dashboard, its query not yet asked."""

    name: str
    type: str
    query: str
    multi: bool
    include_all: bool
    all_value: str
    regex: str
    options: tuple[str, ...]
    preset: str


def variables(dashboard: Mapping[str, Any]) -> list[Variable]:
    """The variables in the order in which they are asked; data sources are left out."""
    found = []
    for item in dashboard.get("templating", {}).get("list", ()):
        if item["type"] == "datasource":
            continue
        query = item.get("query") or ""
        text = query if isinstance(query, str) else str(query.get("query", ""))
        static = item["type"] in ("custom", "interval", "constant", "textbox")
        options = tuple(part.strip().rpartition(" : ")[2] for part in text.split(",")) if static else ()
        multi, include_all = bool(item.get("multi")), bool(item.get("includeAll"))
        current = (item.get("current") or {}).get("value") or ""
        preset = current if isinstance(current, str) and not current.startswith("$__") else ""
        all_value, regex = item.get("allValue") or "", item.get("regex") or ""
        found.append(Variable(item["name"], item["type"], text, multi, include_all, all_value, regex, options, preset))
    return found


def used_variables(text: str) -> set[str]:
    """Names of the variables that a text refers to, Grafana's own ones left out."""
    names = {next(name for name in (match[1], match[3], match[4]) if name) for match in _REFERENCE.finditer(text)}
    return {name for name in names if not name.startswith("__")}


def fill(text: str, values: Values, known: Mapping[str, Variable], *, builtin: Mapping[str, str], escape: bool = True) -> str:
    """Put values in, by the rules of Grafana's Prometheus data source; a variable that nobody has is left in the text.

    Args:
        text: a query.
        values: a value of each variable; ``ALL`` becomes the variable's own text for it.
        known: the variables by name.
        builtin: values of ``$__rate_interval`` and the like.
        escape: whether values stand in a regular expression; false for Jaeger and for links.
    """

    def one(value: str) -> str:
        return _SPECIAL.sub(lambda sign: "\\\\" + sign[0], value) if escape else value

    def value_of(match: re.Match[str]) -> str:
        name, form = match[1] or match[3] or match[4], match[2] or ""
        if name in builtin:
            return builtin[name]
        if name not in values:
            return match[0]
        value, variable = values[name], known[name]
        if value == ALL:
            return variable.all_value
        if form == "raw":
            return value if isinstance(value, str) else ",".join(value)
        if isinstance(value, str):
            return one(value) if variable.multi or variable.include_all else value
        return "(" + "|".join(map(one, value)) + ")"

    return _REFERENCE.sub(value_of, text)


@dataclass(frozen=True)
class Asked:
    """One query of one panel, with variables still in it."""

    where: str
    source: str
    """``prometheus`` or ``jaeger``."""
    expression: str
    search: Mapping[str, Any] = field(default_factory=dict)
    instant: bool = False
    heatmap: bool = False
    exemplar: bool = False
    legend: str = ""
    unit: str = ""
    repeated_by: str = ""
    panel: int = 0

    @property
    def text(self) -> str:
        """Everything in which variables may stand."""
        return self.expression or json.dumps(dict(self.search))


def leaves(panels: Iterable[Mapping[str, Any]], repeated_by: str = "") -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every panel that is no row, inside collapsed rows as well, and the variable that it, or its row, is repeated by."""
    row_repeat = ""
    for panel in panels:
        if panel["type"] == "row":
            row_repeat = panel.get("repeat") or ""
            yield from leaves(panel.get("panels") or (), row_repeat)
        else:
            yield panel, panel.get("repeat") or row_repeat or repeated_by


def _unit(panel: Mapping[str, Any], ref: str, legend: str) -> str:
    config = panel.get("fieldConfig", {})
    unit = str(config.get("defaults", {}).get("unit") or "")
    names = {("byFrameRefID", ref), ("byName", legend), ("byName", f"Value #{ref}"), ("byName", "Value")}
    for override in config.get("overrides", ()):
        if (override["matcher"]["id"], override["matcher"].get("options")) in names:
            unit = next((str(item["value"]) for item in override["properties"] if item["id"] == "unit"), unit)
    return unit


def queries(dashboard: Mapping[str, Any]) -> list[Asked]:
    """Every query of every panel."""
    found = []
    for panel, repeated_by in leaves(dashboard["panels"]):
        for target in panel.get("targets") or ():
            source = (target.get("datasource") or panel.get("datasource") or {}).get("type", "")
            where = f"{dashboard['uid']} / {panel['title']} / {target.get('refId', '?')}"
            legend = str(target.get("legendFormat") or "")
            found.append(
                Asked(
                    where,
                    source,
                    str(target.get("expr") or ""),
                    search={}
                    if source == "prometheus"
                    else {key: value for key, value in target.items() if key not in ("datasource", "refId")},
                    instant=bool(target.get("instant")) and not target.get("range"),
                    heatmap=target.get("format") == "heatmap",
                    exemplar=bool(target.get("exemplar")),
                    legend=legend,
                    unit=_unit(panel, str(target.get("refId")), legend),
                    repeated_by=repeated_by,
                    panel=int(panel.get("id") or 0),
                )
            )
    return found


def queries_of_annotations(dashboard: Mapping[str, Any]) -> list[Asked]:
    """What is asked for the marks above the panels; Grafana's own ones ask nobody."""
    found = []
    for item in dashboard.get("annotations", {}).get("list", ()):
        if (item.get("datasource") or {}).get("type") == "prometheus":
            expression = item.get("expr") or item.get("target", {}).get("expr", "")
            legend = " ".join(str(item.get(key) or "") for key in ("titleFormat", "textFormat"))
            found.append(Asked(f"{dashboard['uid']} / annotation {item['name']}", "prometheus", expression, legend=legend, unit="none"))
    return found


def legend_labels(legend: str) -> list[str]:
    """Labels that a legend takes from its series."""
    return _LEGEND.findall(legend)


def links(dashboard: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where it is, and URL, of each link of a dashboard, its panels and their data; lists of dashboards have no URL."""
    found = [
        (f"{dashboard['uid']} / link {item['title']}", item["url"]) for item in dashboard.get("links", ()) if item.get("type") == "link"
    ]
    for panel, _ in leaves(dashboard["panels"]):
        config = panel.get("fieldConfig", {})
        of_fields = [item for item in config.get("defaults", {}).get("links") or ()]
        for override in config.get("overrides", ()):
            of_fields += [link for item in override["properties"] if item["id"] == "links" for link in item["value"]]
        for item in (*(panel.get("links") or ()), *of_fields):
            if item.get("url"):
                found.append((f"{dashboard['uid']} / {panel['title']} / link {item['title']}", str(item["url"])))
    return found


def labels_named(dashboard: Mapping[str, Any]) -> list[tuple[int, set[str]]]:
    """Number of each panel, and the labels that its links and its table's columns take from its series."""
    found = []
    for panel, _ in leaves(dashboard["panels"]):
        names = {first or second for first, second in _LINKED.findall(json.dumps(panel.get("fieldConfig", {})))}
        for step in panel.get("transformations") or ():
            columns = {name for key in ("indexByName", "renameByName", "excludeByName") for name in step.get("options", {}).get(key, {})}
            names |= {name for name in columns if name != "Time" and not name.startswith("Value")}
        if names:
            found.append((int(panel["id"]), names))
    return found


def explored(url: str) -> list[Mapping[str, Any]]:
    """The queries of a link to Explore."""
    parameters = parse_qs(urlsplit(url).query)
    panes = [json.loads(text) for text in parameters.get("panes", ())]
    return [query for pane in panes for side in pane.values() for query in side["queries"]]
