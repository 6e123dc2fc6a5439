"""A whole dashboard around its panels: variables, links, annotations, rows, places on the grid, ids.

In: ``Row``s of ``Sized`` panels. Out: the dashboard as the JSON that Grafana loads, the same on every run. Places are counted here
because the SDK's own layout lets panels run over the right edge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import DataSourceRef

from inferspan import semconv

from .links import TITLES
from .panels import Sized
from .queries import Queries
from .variables import PROMETHEUS, variables

__all__ = ["Row", "frame"]

COLUMNS = 24
TAG = "inferspan"


@dataclass(frozen=True)
class Row:
    """Panels under a heading. A closed one costs nothing until somebody opens it. ``repeat``: once for each value of a variable."""

    title: str
    panels: Sequence[Sized]
    closed: bool = False
    repeat: str = ""


def frame(
    uid: str, about: str, rows: Sequence[Row], names: Sequence[str], *, refresh: str = "30s", start: str = "now-1h"
) -> dict[str, Any]:
    """The dashboard.

    Args:
        uid: one of ``links``.
        about: what it is for, in one sentence.
        rows: its rows.
        names: of its variables, in the order in which they are asked.
        refresh: how often it asks again.
        start: of the time range it opens with.
    """
    dashboard = build.Dashboard(TITLES[uid]).uid(uid).description(about).tags([TAG, "generated"]).refresh(refresh).time(start, "now")
    dashboard = dashboard.timezone("browser").tooltip(model.DashboardCursorSync.CROSSHAIR).readonly()
    for variable in variables(names):
        dashboard = dashboard.with_variable(variable)
    for link in _links():
        dashboard = dashboard.link(link)
    for annotation in _annotations(Queries(names)):
        dashboard = dashboard.annotation(annotation)
    built = dashboard.build()
    built.panels = _placed(rows)
    result: dict[str, Any] = json.loads(json.dumps(built, cls=JSONEncoder))
    return result


def _links() -> Iterator[build.DashboardLink]:
    yield (
        build.DashboardLink("inferspan")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .keep_time(True)
        .include_vars(True)
    )


def _annotations(queries: Queries) -> Iterator[build.AnnotationQuery]:
    def new(expression: str, by: str) -> str:
        """What is there now and was not five minutes ago: a beginning, drawn once."""
        return f"count by ({by}) ({expression}) unless count by ({by}) ({expression} offset 5m)"

    # Grafana's own, for marks that people set.
    grafana = DataSourceRef(type_val="grafana", uid="-- Grafana --")
    yield (
        build.AnnotationQuery()
        .name("Marks")
        .datasource(grafana)
        .built_in(1)
        .type("dashboard")
        .icon_color("rgba(0, 211, 255, 1)")
        .enable(True)
    )
    # Not target_info: only Prometheus' own OTLP receiver writes service_name there, the collector's exporters do not.
    versions = new(queries.series(semconv.M_PROCESS_UPTIME, 'service_version!=""'), "service_name, service_version")
    yield _annotation(
        "Versions", versions, "purple", "Version {{service_version}}", "{{service_name}} reports service.version {{service_version}}"
    )
    # Any metric with the name of the model would do; this one begins with the first request.
    models = new(queries.series(semconv.M_ACTIVE), "service_name, gen_ai_request_model")
    yield _annotation("Models", models, "blue", "Model {{gen_ai_request_model}}", "{{service_name}} answers with {{gen_ai_request_model}}")
    # An alert has the labels of what it is about, a service or a card: the bar at the end keeps those that lack the label. Labels that
    # not every alert has are shown as tags, because a text would show the name of a label that is not there.
    about = (("deployment_environment_name", "env"), ("service_name", "service"), ("host_name", "host"))
    filters = [f'{label}=~"${name}|"' for label, name in about]
    firing = Queries(()).series("ALERTS", 'alertname=~"Inferspan.*"', 'alertstate="firing"', *filters)
    labels = "service_name,gen_ai_request_model,inferspan_distributed_rank,host_name,hw_name"
    yield _annotation("Alerts", firing, "red", "{{alertname}}", "{{severity}}").tag_keys(labels)


def _annotation(name: str, expression: str, color: str, title: str, text: str) -> build.AnnotationQuery:
    made = build.AnnotationQuery().name(name).datasource(PROMETHEUS).enable(True).icon_color(color).expr(expression)
    return made.step("60s").title_format(title).text_format(text)


def _placed(rows: Sequence[Row]) -> list[model.Panel | model.RowPanel]:
    placed: list[model.Panel | model.RowPanel] = []
    line, next_id = 0, 1
    for row in rows:
        inside: list[model.Panel] = []
        row_id, next_id = next_id, next_id + 1
        x, y, tallest = 0, line + 1, 0
        for sized in row.panels:
            if x + sized.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            panel = sized.builder.build()
            panel.id_val, next_id = next_id, next_id + 1
            panel.grid_pos = model.GridPos(x=x, y=y, w=sized.width, h=sized.height)
            inside.append(panel)
            x, tallest = x + sized.width, max(tallest, sized.height)
        position = model.GridPos(x=0, y=line, w=COLUMNS, h=1)
        # Panels of a closed row stand in it, those of an open one behind it.
        placed.append(model.RowPanel(row.closed, row.title, None, position, row_id, inside if row.closed else [], row.repeat or None))
        placed += [] if row.closed else inside
        line = line + 1 if row.closed else y + tallest
    return placed
