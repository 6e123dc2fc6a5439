"""The other kinds of panels: heat maps, grids of states, bars, tables, lists of traces and alerts.

As in ``panels``: title, queries, unit and ``Says`` in, ``Sized`` builders out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import bargauge, heatmap, statetimeline, statushistory
from grafana_foundation_sdk.builders import common as common_build
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import table as table_build
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from .links import Link, to_trace
from .panels import Limits, Query, Says, Sized, data_links, finish, heading, override, rename, short_ids, thresholds, tooltip
from .variables import JAEGER, PROMETHEUS

__all__ = ["JaegerSearch", "alerts", "bars", "grid", "heat", "states", "table", "traces"]

SHORT_LEGEND = (
    common_build.VizLegendOptions().show_legend(True).display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM)
)


def heat(
    title: str,
    expression: str,
    *,
    unit: str,
    says: Says,
    width: int = 8,
    height: int = 8,
    exemplar: bool = False,
    links: Sequence[Link] = (),
) -> Sized:
    """A histogram over time; ``expression`` is one of ``Queries.heat``."""
    panel = heading(heatmap.Panel(), title, says, unit, links).calculate(False).thresholds(thresholds("green"))
    panel = panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common.AxisPlacement.LEFT)).cell_gap(1)
    panel = panel.color(
        heatmap.HeatmapColorOptions()
        .mode(heatmap_model.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
    )
    # Empty buckets are left out, or the whole panel would be the colour of zero.
    panel = panel.filter_values(heatmap.FilterValueRange().le(1e-9)).show_legend()
    panel = panel.tooltip(heatmap.HeatmapTooltip().mode(common.TooltipDisplayMode.SINGLE).show_color_scale(True))
    return finish(panel, [Query(expression, "{{le}}", exemplar=exemplar, format=prometheus_model.PromQueryFormat.HEATMAP)], width, height)


def grid(
    title: str,
    query: Query,
    *,
    unit: str,
    says: Says,
    width: int = 24,
    height: int = 8,
    minimum: float | None = None,
    maximum: float | None = None,
    color: model.FieldColorModeId,
    links: Sequence[Link] = (),
    renamed: tuple[str, str] | None = None,
) -> Sized:
    """One line of coloured cells for each series (status history): many series at one glance.

    No legend says what the colours mean: the title has to. ``renamed``: a regular expression and what becomes of names that match it,
    after they have been put in order.
    """
    panel = heading(statushistory.Panel(), title, says, unit, links).color_scheme(build.FieldColor().mode(color))
    panel = (
        panel.thresholds(thresholds("green")).show_value(common.VisibilityMode.AUTO).row_height(0.9).legend(SHORT_LEGEND).tooltip(tooltip())
    )
    panel = panel.min(minimum) if minimum is not None else panel
    panel = panel.max(maximum) if maximum is not None else panel
    # A cell for each step is unreadable on a long range.
    panel = panel.max_data_points(120).with_transformation(short_ids())
    return finish(panel.with_transformation(rename(*renamed)) if renamed else panel, [query], width, height)


def states(
    title: str, *queries: Query, says: Says, mappings: Sequence[Any], width: int = 12, height: int = 8, links: Sequence[Link] = ()
) -> Sized:
    """Which state each series is in over time (state timeline); ``mappings`` name the states."""
    panel = heading(statetimeline.Panel(), title, says, "short", links).mappings(list(mappings)).thresholds(thresholds("green"))
    panel = panel.merge_values(True).show_value(common.VisibilityMode.AUTO).row_height(0.8).legend(SHORT_LEGEND).tooltip(tooltip())
    return finish(panel, queries, width, height)


def bars(
    title: str,
    *queries: Query,
    unit: str,
    says: Says,
    width: int = 8,
    height: int = 8,
    minimum: float | None = 0,
    maximum: float | None = None,
    base: str = "blue",
    limits: Limits = (),
    links: Sequence[Link] = (),
    decimals: int | None = None,
) -> Sized:
    """One bar for each series, of its last value."""
    panel = (
        heading(bargauge.Panel(), title, says, unit, links)
        .thresholds(thresholds(base, limits))
        .orientation(common.VizOrientation.HORIZONTAL)
    )
    panel = panel.display_mode(common.BarGaugeDisplayMode.BASIC).reduce_options(common_build.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.min(minimum) if minimum is not None else panel
    panel = panel.max(maximum) if maximum is not None else panel
    panel = panel.decimals(decimals) if decimals is not None else panel
    # Without values there would be an empty bar beside the text that says why.
    panel = panel.show_unfilled(False)
    # Left to itself Grafana writes as large as there is room.
    panel = panel.text(common_build.VizTextDisplayOptions().title_size(14).value_size(16))
    return finish(panel.with_transformation(short_ids()), queries, width, height)


def table(
    title: str,
    *queries: Query,
    says: Says,
    columns: Mapping[str, Mapping[str, object]],
    hidden: Sequence[str] = ("Time",),
    sort_by: str,
    width: int = 24,
    height: int = 10,
) -> Sized:
    """A table, joined from instant queries by their labels.

    Args:
        title: of the panel.
        queries: each gives a column named ``Value #A``, ``Value #B``, ...; their labels must be the same.
        says: what the panel tells.
        columns: by the name of a column, in order: ``displayName``, ``unit`` and other properties (``__`` for a dot).
        hidden: columns that are left out.
        sort_by: name of a column as it is displayed; the largest comes first.
        width: of the panel.
        height: of the panel.
    """
    panel = (
        heading(table_build.Panel(), title, says, "")
        .thresholds(thresholds("transparent"))
        .show_header(True)
        .cell_height(common.TableCellHeight.SM)
    )
    panel = panel.sort_by([common_build.TableSortByFieldState().display_name(sort_by).desc(True)])
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    organize = {"excludeByName": {name: True for name in hidden}, "indexByName": {name: index for index, name in enumerate(columns)}}
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=organize))
    for name, properties in columns.items():
        # A cell without a value would show the text that is meant for the empty panel.
        panel = panel.override_by_name(name, override(**{"noValue": "-", **properties}))
    asked = [query._replace(instant=True, format=prometheus_model.PromQueryFormat.TABLE) for query in queries]
    return finish(panel, asked, width, height)


class JaegerSearch(variants.Dataquery):  # type: ignore[misc]  # the SDK is not followed, see pyproject.toml
    """A search of Jaeger's data source; the SDK has no builder for it."""

    def __init__(self, **fields: object) -> None:
        self.fields = {"refId": "A", "queryType": "search", "datasource": JAEGER, **fields}

    def build(self) -> JaegerSearch:
        """Itself."""
        return self

    def to_json(self) -> dict[str, object]:
        """As it stands in a dashboard."""
        return dict(self.fields)

    @classmethod
    def from_json(cls, data: dict[str, object]) -> JaegerSearch:
        """From a dashboard."""
        return cls(**data)


def traces(title: str, *, says: Says, width: int = 12, height: int = 8, limit: int = 20, **search: str) -> Sized:
    """A table of traces; a click on an id opens the trace. ``search``: ``tags``, ``minDuration``, ``operation``."""
    panel = heading(table_build.Panel(), title, says, "").datasource(JAEGER).thresholds(thresholds("transparent")).show_header(True)
    panel = panel.sort_by([common_build.TableSortByFieldState().display_name("Duration").desc(True)]).cell_height(common.TableCellHeight.SM)
    panel = panel.override_by_name("traceID", [*override(displayName="Trace", custom__width=120), *override(links=data_links_of_cell())])
    panel = panel.override_by_name("traceName", override(displayName="Request"))
    panel = panel.override_by_name("startTime", override(displayName="Start", custom__width=190))
    panel = panel.override_by_name("duration", override(displayName="Duration", custom__width=110))
    return Sized(panel.with_target(JaegerSearch(service="${trace_service}", limit=limit, **search)), width, height)


def data_links_of_cell() -> list[dict[str, object]]:
    """The link of a trace id."""
    return [link.build().to_json() for link in data_links([to_trace()])]


def alerts(title: str, *, says: Says, name: str, width: int = 4, height: int = 5) -> Sized:
    """Alerts that fire or are pending, whose name matches."""
    options = {
        "viewMode": "list", "groupMode": "default", "groupBy": [], "maxItems": 20, "sortOrder": 3, "dashboardAlerts": False,
        "alertName": name, "alertInstanceLabelFilter": "", "folder": None, "showInstances": False,
        "stateFilter": {"firing": True, "pending": True, "noData": False, "normal": False, "error": True},
    }  # fmt: skip
    panel = build.Panel().type("alertlist").title(title).description(says.description).no_value(says.empty).datasource(PROMETHEUS)
    return Sized(panel.options(options), width, height)
