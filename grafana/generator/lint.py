"""What is wrong with a dashboard, as far as it can be said without Grafana.

In: dashboards as JSON. Out: one text for each problem, with the dashboard and the panel in front. Each rule is there because a public
dashboard somewhere breaks it: renamed metrics, overlapping panels, units left out, data sources of somebody else's Grafana.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as model

from .catalogue import CATALOGUE, NOT_SHOWN, SERIES
from .promql import Checked, check
from .units import OWN

__all__ = ["OPEN_PANELS", "UNITS", "lint", "lint_all", "panels"]

Json = Mapping[str, Any]

COLUMNS = 24
OPEN_PANELS = 12
"""A wall of forty panels is opened by nobody."""
LETTERS = 8
"""Of a text in a stat panel, for each column."""
UNITS = frozenset(
    {
        "Bps",
        "bytes",
        "celsius",
        "dateTimeAsIso",
        "hertz",
        "joule",
        "kwatth",
        "none",
        "ops",
        "percentunit",
        "reqps",
        "rotrpm",
        "s",
        "short",
        "string",
        *OWN,
        "watt",
    }
)
WITHOUT_UNIT = ("alertlist", "table", "text")
_GROUPING = {"by": frozenset({"host_name", "inferspan_distributed_rank", "instance", "k8s_pod_name", "service_version"})}
_USED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def panels(dashboard: Json) -> Iterator[Json]:
    """Every panel that is no row, those in closed rows too."""
    for item in dashboard["panels"]:
        if item["type"] == "row":
            yield from item.get("panels") or ()
        else:
            yield item


def _variables(dashboard: Json) -> list[Json]:
    return list(dashboard.get("templating", {}).get("list") or ())


def _names_in(value: object) -> set[str]:
    return {name for name in _USED.findall(json.dumps(value)) if not name.startswith("__")}


# ------------------------------------------------------------------------------------------------------- rules for a panel
def _texts(panel: Json) -> Iterator[str]:
    if not panel.get("title"):
        yield "no title"
    if not panel.get("description"):
        yield "no description"
    elif not {"**How:**", "**What to do:**"} <= set(re.findall(r"\*\*[^*]+\*\*", panel["description"])):
        yield "description does not say how it is computed and what to do"
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    if panel["type"] != "text" and not defaults.get("noValue"):
        yield "no text for when there is nothing (noValue)"


def _unit(panel: Json) -> Iterator[str]:
    config = panel.get("fieldConfig", {})
    units = [config.get("defaults", {}).get("unit")]
    units += [item["value"] for override in config.get("overrides") or () for item in override["properties"] if item["id"] == "unit"]
    if units[0] is None and panel["type"] not in WITHOUT_UNIT:
        yield "no unit"
    for unit in sorted({unit for unit in units if unit} - UNITS):
        yield f"unit {unit}: use a base unit ({', '.join(sorted(UNITS))})"


def _thresholds(panel: Json) -> Iterator[str]:
    if panel["type"] in ("alertlist", "text"):
        return
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    steps = (defaults.get("thresholds") or {}).get("steps")
    if not steps:
        yield "no thresholds: Grafana would turn everything red at 80"
    elif defaults.get("unit") != "celsius" and any(step.get("value") == 80 for step in steps):
        yield "threshold 80 is left over from Grafana's default"


def _sources(panel: Json) -> Iterator[str]:
    for item in (panel, *(panel.get("targets") or ())):
        uid = (item.get("datasource") or {}).get("uid", "")
        if (item is not panel or panel["type"] != "text") and not re.fullmatch(r"\$\{ds_\w+\}", uid):
            yield f"data source {uid or '(none)'} is not a variable"


def _targets(panel: Json) -> Iterator[str]:
    targets = panel.get("targets") or ()
    if not targets and panel["type"] not in ("alertlist", "text"):
        yield "no query"
    refs = [target.get("refId") for target in targets]
    if len(set(refs)) < len(refs):
        yield "two queries have one refId"
    for target in targets:
        if "expr" in target:
            yield from (f"query {target.get('refId')}: {problem}" for problem in _target(panel, target))


def _target(panel: Json, target: Json) -> Iterator[str]:
    checked = _checked(target["expr"])
    yield from checked.problems
    legend = target.get("legendFormat") or ""
    if panel["type"] != "table" and not legend:
        yield "no legend"
    for name in _LEGEND.findall(legend):
        if not checked.problems and name not in checked.labels:
            yield f"legend {{{{{name}}}}}: the result has no such label"
    if panel["type"] == "heatmap" and (target.get("format") != "heatmap" or "le" not in checked.labels):
        yield "a heat map needs buckets by le and the format heatmap"
    if target.get("exemplar") and panel["type"] != "heatmap" and not re.search(r"histogram_quantile\(0\.95\b", target["expr"]):
        yield "exemplars on something else than p95: the dots would be drawn once for each quantile"


def _checked(expression: str) -> Checked:
    grouping = frozenset[str]().union(*(labels for name, labels in _GROUPING.items() if name in _names_in(expression)))
    return check(expression, grouping)


def _readable(panel: Json) -> Iterator[str]:
    """A stat panel writes its text in one line or two, as large as fits."""
    if panel["type"] == "stat":
        text = panel.get("fieldConfig", {}).get("defaults", {}).get("noValue") or ""
        room = LETTERS * panel["gridPos"]["w"]
        if len(text) > room:
            yield f"text for when there is nothing has {len(text)} letters, {room} can be read"


PANEL_RULES: Sequence[Callable[[Json], Iterator[str]]] = (_texts, _unit, _thresholds, _sources, _targets, _readable)


# --------------------------------------------------------------------------------------------------- rules for a dashboard
def _grids(dashboard: Json) -> Iterator[str]:
    """Closed rows are grids of their own."""
    yield from _grid([item for item in dashboard["panels"]])
    for row in dashboard["panels"]:
        if row["type"] == "row" and row.get("panels"):
            yield from _grid(row["panels"])


def _grid(items: Sequence[Json]) -> Iterator[str]:
    taken: dict[tuple[int, int], str] = {}
    for item in items:
        place, title = item["gridPos"], item.get("title", "")
        if place["x"] < 0 or place["x"] + place["w"] > COLUMNS:
            yield f"{title}: reaches to column {place['x'] + place['w']} of {COLUMNS}"
        cells = [(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])]
        others = sorted({taken[cell] for cell in cells if cell in taken})
        if others:
            yield f"{title}: lies over {', '.join(others)}"
        taken |= dict.fromkeys(cells, str(title))


def _unique(dashboard: Json) -> Iterator[str]:
    every = [*dashboard["panels"], *(panel for row in dashboard["panels"] for panel in row.get("panels") or ())]
    ids = [item.get("id") for item in every]
    if len(set(ids)) < len(ids) or None in ids:
        yield f"ids of panels are not unique: {sorted(str(one) for one in ids if ids.count(one) > 1 or one is None)}"
    titles = [panel.get("title") for panel in panels(dashboard)]
    for title in sorted({str(one) for one in titles if titles.count(one) > 1}):
        yield f"two panels have the title {title}"


def _open_panels(dashboard: Json) -> Iterator[str]:
    count = sum(item["type"] != "row" for item in dashboard["panels"])
    if count > OPEN_PANELS:
        yield f"{count} panels are open at once, at most {OPEN_PANELS}: close a row"


def _variable_use(dashboard: Json) -> Iterator[str]:
    known = [item["name"] for item in _variables(dashboard)]
    rest = {key: value for key, value in dashboard.items() if key != "templating"}
    repeats = {item.get("repeat") for item in (*dashboard["panels"], *panels(dashboard))}
    used = _names_in(rest) | repeats
    for index, item in enumerate(_variables(dashboard)):
        asked = _names_in([item.get("query"), item.get("datasource"), item.get("regex")])
        used |= asked
        for name in sorted(asked - set(known[:index])):
            yield f"variable {item['name']} uses {name}, which does not come before it"
        if item.get("includeAll") and item.get("allValue") != ".*":
            yield f"variable {item['name']}: All must be .*, or series without the label are hidden"
    for name in sorted(_names_in(rest) - set(known)):
        yield f"unknown variable {name}"
    for name in sorted(set(known) - used):
        yield f"variable {name} is not used"


def _annotation_queries(dashboard: Json) -> Iterator[str]:
    for item in dashboard.get("annotations", {}).get("list") or ():
        if item.get("expr"):
            yield from (f"annotation {item['name']}: {problem}" for problem in _checked(item["expr"]).problems)


def _round_trip(dashboard: Json) -> Iterator[str]:
    """What the SDK does not know, Grafana most likely does not either."""
    register_default_plugins()
    again = json.loads(json.dumps(model.Dashboard.from_json(json.loads(json.dumps(dashboard))), cls=JSONEncoder))
    for path in sorted(_differences(dashboard, again)):
        yield f"{path} is not what the schema of Grafana has"


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {*one, *other}:
            yield from _differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{path}[{index}]")
    elif one != other:
        yield path


DASHBOARD_RULES: Sequence[Callable[[Json], Iterator[str]]] = (
    _grids, _unique, _open_panels, _variable_use, _annotation_queries, _round_trip,
)  # fmt: skip


def lint(dashboard: Json) -> list[str]:
    """Problems of one dashboard."""
    found = [
        f"{panel.get('title') or panel.get('id')}: {problem}"
        for panel in panels(dashboard)
        for rule in PANEL_RULES
        for problem in rule(panel)
    ]
    found += [problem for rule in DASHBOARD_RULES for problem in rule(dashboard)]
    return [f"{dashboard.get('uid')}: {problem}" for problem in found]


# ------------------------------------------------------------------------------------------------------ rules for all of them
def _dead_links(dashboards: Sequence[Json]) -> Iterator[str]:
    known = {dashboard["uid"] for dashboard in dashboards}
    for dashboard in dashboards:
        for uid in sorted(set(re.findall(r"/d/([\w-]+)", json.dumps(dashboard))) - known):
            yield f"{dashboard['uid']}: a link leads to {uid}, which is not there"
        for link in dashboard.get("links") or ():
            if not any(set(link.get("tags") or ()) <= set(other.get("tags") or ()) for other in dashboards if other is not dashboard):
                yield f"{dashboard['uid']}: the link {link.get('title')} leads nowhere"


def _not_shown(dashboards: Sequence[Json]) -> Iterator[str]:
    names = set[str]()
    for dashboard in dashboards:
        for panel in panels(dashboard):
            for target in panel.get("targets") or ():
                names |= check(target["expr"]).metrics if "expr" in target else set()
    shown = {entry.key for name in names for entry, _ in SERIES[name]}
    ours = {entry.key for entry in CATALOGUE.values() if entry.source == "inferspan"}
    for key in sorted(ours - shown - set(NOT_SHOWN)):
        yield f"{key} is on no dashboard: show it, or say in catalogue.NOT_SHOWN why not"
    for key in sorted(set(NOT_SHOWN) - (ours - shown)):
        yield f"{key} is in catalogue.NOT_SHOWN, but {'is shown' if key in shown else 'does not exist'}"


def lint_all(dashboards: Sequence[Json]) -> list[str]:
    """Problems of a set of dashboards."""
    found = [problem for dashboard in dashboards for problem in lint(dashboard)]
    return [*found, *_dead_links(dashboards), *_not_shown(dashboards)]
