"""The variables that dashboards choose from: data sources, what is measured, how it is shown.

In: names. Out: SDK builders in an order in which each may use those before it. "All" is ``.*`` and not the list of values, so that it
matches series without the label too: most programs say nothing of their environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import DataSourceRef

from inferspan import semconv

from .catalogue import find, label

__all__ = ["COMMON", "JAEGER", "PROMETHEUS", "variables"]

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${ds_prom}")
JAEGER = DataSourceRef(type_val="jaeger", uid="${ds_trace}")

COMMON = ("env", "service", "model", "host", "instance")
"""What every dashboard can be narrowed by."""


def _any_of(*names: str) -> str:
    return f'__name__=~"{"|".join(names)}"'


def _name(key: str, part: str = "") -> str:
    return find(key).name + part


_REQUESTS = _name(semconv.M_SERVER_DURATION, "_count")
_FORWARDS = _name(semconv.M_FORWARD_DURATION, "_count")
_STEPS = _name(semconv.M_STEP_DURATION, "_count")
_MODULES = _name(semconv.M_MODULE_DURATION, "_count")
# Programs of ours, whatever they do: one that has only samplers has no requests, one without samplers no uptime.
_PROGRAMS = _any_of(_REQUESTS, _FORWARDS, _name(semconv.M_PROCESS_UPTIME), _name(semconv.M_GPU_MEMORY_LIMIT))
# Embedding calls have no other metric in common with generate() than the older names.
_EMBEDDINGS = (_name(semconv.M_EMBEDDINGS_DURATION, "_count"), _name(semconv.M_LEGACY_DURATION, "_count"))
_MODELS = _any_of(_REQUESTS, _name(semconv.M_ACTIVE), *_EMBEDDINGS)
_ENV = 'deployment_environment_name=~"$env"'
_SERVICE = f'{_ENV},service_name=~"$service"'
_HOST = f'{_SERVICE},host_name=~"$host"'
_MODEL = label(semconv.MODEL_NAME)


class _Values(NamedTuple):
    title: str
    selector: str
    label: str
    numbers: bool = False
    one: bool = False
    about: str = ""


# `{name}`: the variable is asked of Prometheus, among series that the variables before it leave.
_ASKED = {
    "env": _Values("Environment", _PROGRAMS, "deployment_environment_name", about="deployment.environment.name of the resource"),
    "service": _Values("Service", f"{_PROGRAMS},{_ENV}", "service_name", about="service.name: OTEL_SERVICE_NAME"),
    "model": _Values("Model", f"{_MODELS},{_SERVICE}", label(semconv.REQUEST_MODEL), about="of generate() and of embedding calls"),
    "host": _Values("Host", f"{_PROGRAMS},{_SERVICE}", "host_name", about="host.name"),
    "instance": _Values("Instance", f"{_PROGRAMS},{_HOST}", "instance", about="service.instance.id: one process"),
    "job": _Values("Job", f"{_PROGRAMS},{_SERVICE}", "job", about="service.namespace/service.name"),
    "rank": _Values("Rank", f"{_PROGRAMS},{_HOST}", label(semconv.RANK), numbers=True, about="rank under a launcher"),
    "gpu": _Values("GPU", f"{_name(semconv.M_GPU_MEMORY_LIMIT)}{{{_HOST}}}", label(semconv.HW_ID), about="hw.id: UUID of the card"),
    "phase": _Values("Phase", f"{_STEPS}{{{_SERVICE}}}", label(semconv.PHASE), about="prefill or decode"),
    "module_class": _Values(
        "Module class",
        f'{_MODULES}{{{_SERVICE},{_MODEL}=~"$model"}}',
        label(semconv.MODULE_TYPE),
        about="class of a module, such as LlamaAttention",
    ),
    "layer": _Values(
        "Layer",
        f'{_MODULES}{{{_SERVICE},{_MODEL}=~"$model"}}',
        label(semconv.MODULE_LAYER_INDEX),
        numbers=True,
        about="number in the list of layers",
    ),
    "trace_service": _Values(
        "Traces of", f"{_PROGRAMS},{_SERVICE}", "service_name", one=True, about="the one service whose traces are listed"
    ),
}


class _Choice(NamedTuple):
    title: str
    values: str
    first: str
    about: str


_CHOICES = {
    "by": _Choice(
        "Group by",
        "host : host_name, rank : inferspan_distributed_rank, instance : instance, pod : k8s_pod_name, version : service_version",
        "host_name",
        "what the series of this dashboard stand for",
    ),
    "compare": _Choice("Compare with", "1h,1d,1w", "1d", "how long before the time range the dashed lines are from"),
    "topn": _Choice("Top", "5,10,20,50", "10", "how many of the largest are shown"),
    "slow": _Choice("Slow from", "10ms,50ms,100ms,250ms,500ms,1s,2s,5s,10s,30s", "500ms", "traces at least this long are listed as slow"),
}
_ALL = model.VariableOption(selected=True, text="All", value="$__all")


def _source(name: str, title: str, kind: str, about: str) -> Builder[model.VariableModel]:
    return build.DatasourceVariable(name).label(title).type(kind).description(about)


def _asked(name: str, values: _Values) -> Builder[model.VariableModel]:
    selector = values.selector if values.selector.endswith("}") else f"{{{values.selector}}}"
    sort = model.VariableSort.NUMERICAL_ASC if values.numbers else model.VariableSort.ALPHABETICAL_ASC
    made = build.QueryVariable(name).label(values.title).description(values.about).datasource(PROMETHEUS)
    made = made.query(f"label_values({selector}, {values.label})").refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(sort)
    return made if values.one else made.multi(True).include_all(True).all_value(".*").current(_ALL)


def _choice(name: str, choice: _Choice) -> Builder[model.VariableModel]:
    options = [(text.strip(), value.strip()) for text, _, value in (item.partition(" : ") for item in choice.values.split(","))]
    chosen = next((text, value or text) for text, value in options if (value or text) == choice.first)
    current = model.VariableOption(selected=True, text=chosen[0], value=chosen[1])
    return build.CustomVariable(name).label(choice.title).description(choice.about).values(choice.values).current(current)


def variables(names: Sequence[str]) -> list[Builder[model.VariableModel]]:
    """Builders of the data sources and of the variables of these names.

    Raises:
        KeyError: no variable has this name.
    """
    made = [
        _source("ds_prom", "Metrics", "prometheus", "data source of the metrics"),
        _source("ds_trace", "Traces", "jaeger", "data source of the traces"),
    ]
    for name in names:
        if name not in _ASKED and name not in _CHOICES:
            known = ", ".join(sorted((*_ASKED, *_CHOICES)))
            raise KeyError(f"no variable {name!r}: there are {known}; add it to grafana/generator/variables.py")
        made.append(_asked(name, _ASKED[name]) if name in _ASKED else _choice(name, _CHOICES[name]))
    return made
