"""Panels of all kinds that our dashboards have, each with everything that a reader needs.

In: title, queries with legends, unit, and what is to be said (``Says``); none of them can be left out. Out: ``Sized`` SDK builders that
``frame`` puts on the grid. Settings that should be the same everywhere (thresholds, tooltips, legends) stand here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import common as common_build
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from .links import Link
from .variables import PROMETHEUS

__all__ = [
    "Limits",
    "Query",
    "Says",
    "Sized",
    "data_links",
    "finish",
    "heading",
    "mapping",
    "nothing",
    "rename",
    "short_ids",
    "stats",
    "target",
    "thresholds",
    "trend",
    "trend_legend",
]

Limits = Sequence[tuple[float, str]]
"""From which value on which colour."""
WIDE = 12
CALC_TITLES = {"mean": "Mean", "max": "Max", "min": "Min", "sum": "Total", "lastNotNull": "Last *"}
UUID = "/([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/"


class Says(NamedTuple):
    """What a panel tells its reader.

    Args:
        what: what is seen.
        how: how it is computed.
        do: what to do when it looks bad.
        empty: why there may be nothing to see.
    """

    what: str
    how: str
    do: str
    empty: str

    @property
    def description(self) -> str:
        """As Markdown."""
        return f"{self.what}\n\n**How:** {self.how}\n\n**What to do:** {self.do}"


class Query(NamedTuple):
    """A query and the legend of its series. ``exemplar``: dots that lead to traces; of several quantiles only p95 gets them."""

    expression: str
    legend: str
    exemplar: bool = False
    instant: bool = False
    format: prometheus_model.PromQueryFormat = prometheus_model.PromQueryFormat.TIME_SERIES


@dataclass(frozen=True)
class Sized:
    """A panel and the part of the grid (24 columns) that it takes."""

    builder: Builder[model.Panel]
    width: int
    height: int


def thresholds(base: str, limits: Limits = ()) -> build.ThresholdsConfig:
    """Colours by value. Written out even if there is one only: Grafana's own default turns everything red at 80."""
    steps = [model.Threshold(value=None, color=base), *(model.Threshold(value=value, color=color) for value, color in limits)]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def data_links(links: Sequence[Link]) -> list[Builder[model.DashboardLink]]:
    """Links for a field."""
    return [build.DashboardLink(link.title).type(model.DashboardLinkType.LINK).url(link.url) for link in links]


def mapping(**texts: tuple[str, str]) -> list[Any]:
    """Text and colour instead of numbers; ``_0=("ok", "green")``."""
    options = {
        key.removeprefix("_"): model.ValueMappingResult(text=text, color=color, index=index)
        for index, (key, (text, color)) in enumerate(texts.items())
    }
    return [model.ValueMap(options=options)]


def nothing(text: str, color: str) -> list[Any]:
    """Text and colour where there is no value, or one that is no number."""
    result = model.ValueMappingResult(text=text, color=color, index=0)
    match = model.SpecialValueMatch.NULL_AND_NAN
    return [model.SpecialValueMap(options=model.DashboardSpecialValueMapOptions(match=match, result=result))]


def override(**properties: object) -> list[DynamicConfigValue]:
    """Properties of single fields: ``unit="s"``; a dot in an id is written as two underscores: ``custom__width=120``."""
    return [DynamicConfigValue(id_val=key.replace("__", "."), value=value) for key, value in properties.items()]


def target(query: Query, index: int) -> prometheus.Dataquery:
    """One query of a panel."""
    made = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(chr(ord("A") + index)).datasource(PROMETHEUS)
    made = made.format(query.format).exemplar(query.exemplar)
    return made.instant() if query.instant else made.range()


def heading(panel: Any, title: str, says: Says, unit: str, links: Sequence[Link] = ()) -> Any:
    """What all panels have."""
    made = panel.title(title).description(says.description).no_value(says.empty).datasource(PROMETHEUS)
    made = made.unit(unit) if unit else made
    return made.data_links(data_links(links)) if links else made


def finish(panel: Any, queries: Sequence[Query], width: int, height: int) -> Sized:
    """Adds the queries."""
    for index, query in enumerate(queries):
        panel = panel.with_target(target(query, index))
    return Sized(panel, width, height)


def trend_legend(width: int, calcs: Sequence[str] = ("mean", "max")) -> common_build.VizLegendOptions:
    """A table where there is room for one, the largest first.

    Below a panel Grafana gives a legend a third of the height, two or three lines of it: in a wide panel it stands at the right.
    """
    mode = common.LegendDisplayMode.TABLE if width >= 8 else common.LegendDisplayMode.LIST
    place = common.LegendPlacement.RIGHT if width >= WIDE else common.LegendPlacement.BOTTOM
    made = common_build.VizLegendOptions().show_legend(True).display_mode(mode).placement(place)
    if width < 8:
        return made.calcs([])
    return made.calcs(list(calcs)).sort_by(CALC_TITLES[calcs[-1]]).sort_desc(True)


def rename(regex: str, pattern: str) -> model.DataTransformerConfig:
    """Another name for each series whose name matches."""
    return model.DataTransformerConfig(id_val="renameByRegex", options={"regex": regex, "renamePattern": pattern})


def short_ids() -> model.DataTransformerConfig:
    """Of the UUIDs in names the first eight digits: a name with a whole one leaves no room for anything else."""
    return rename(UUID, "$1")


def tooltip() -> common_build.VizTooltipOptions:
    """All series at once, the largest first."""
    return common_build.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)


def stats(
    title: str,
    *queries: Query,
    unit: str,
    says: Says,
    width: int = 4,
    height: int = 5,
    base: str = "blue",
    limits: Limits = (),
    links: Sequence[Link] = (),
    decimals: int | None = None,
    sparkline: bool = True,
    missing: tuple[str, str] | None = None,
) -> Sized:
    """One number, with its course below it (Grafana draws it from a height of 5 on); ``limits`` colour it.

    Without a name above it Grafana writes the number across its course. ``missing``: text and colour where there is no number, by default
    grey and what ``says`` has; Grafana writes it as large as there is room, so only a short one can be read.
    """
    text, color = missing or (says.empty, "text")
    says = says._replace(empty=text)
    panel = heading(stat.Panel(), title, says, unit, links).thresholds(thresholds(base, limits))
    panel = panel.graph_mode(common.BigValueGraphMode.AREA if sparkline else common.BigValueGraphMode.NONE)
    panel = panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME) if sparkline else panel
    panel = panel.color_mode(common.BigValueColorMode.VALUE).reduce_options(common_build.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.decimals(decimals) if decimals is not None else panel
    # Without this the text has the colour of a good value.
    return finish(panel.mappings(nothing(text, color)), queries, width, height)


def trend(
    title: str,
    *queries: Query,
    unit: str,
    says: Says,
    width: int = 8,
    height: int = 8,
    stacked: bool = False,
    minimum: float | None = 0,
    maximum: float | None = None,
    logarithmic: bool = False,
    limits: Limits = (),
    links: Sequence[Link] = (),
    calcs: Sequence[str] = ("mean", "max"),
    dashed: str = "",
    decimals: int | None = None,
) -> Sized:
    """Lines over time.

    ``stacked``: areas on top of each other. ``maximum`` is where the axis ends at least. ``dashed``: a regular expression; series whose
    legends match it are limits, not readings.
    """
    panel = heading(timeseries.Panel(), title, says, unit, links).legend(trend_legend(width, calcs)).tooltip(tooltip())
    panel = (
        panel.fill_opacity(40 if stacked else 8)
        .line_width(1)
        .show_points(common.VisibilityMode.AUTO)
        .thresholds(thresholds("green", limits))
    )
    panel = panel.min(minimum) if minimum is not None and not logarithmic else panel
    panel = panel.axis_soft_max(maximum) if maximum is not None else panel
    panel = panel.decimals(decimals) if decimals is not None else panel
    if stacked:
        panel = panel.stacking(common_build.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if logarithmic:
        panel = panel.scale_distribution(common_build.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10))
    if dashed:
        line = {"fill": "dash", "dash": [8, 8]}
        panel = panel.override_by_regexp(dashed, override(custom__lineStyle=line, custom__fillOpacity=0))
    if limits:
        panel = panel.thresholds_style(common_build.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED))
    return finish(panel.with_transformation(short_ids()), queries, width, height)
