"""Row of "Model internals" on modules: time by class, the modules that take most of it, time by layer.

All of it needs the setting ``module_metric``. Modules contain each other, so only those that contain no others are added up.
"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import FieldColorModeId

from inferspan import semconv as s

from ..charts import grid, table
from ..frame import Row
from ..links import OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, trend
from ..queries import WINDOW
from .queries import CLASS, DECODE, LAYER, MODEL_NAME, MODULE, PHASE, PREFILL, REQUEST_MODEL, Q, by_layer, of

__all__ = ["row"]

# The time of a layer is also that of the attention and the MLP inside it.
PARTS = f'{CLASS}!~".*(Layer|Block|Model|LM)"'
ROW_OF_TABLE = (MODEL_NAME, MODULE, CLASS, LAYER, PHASE)
NEEDS = "Needs the setting `module_metric` (`INFERSPAN_MODULE_METRIC=true`)."
NO_MODULES = "modules are not measured: set INFERSPAN_MODULE_METRIC=true or module_metric=True"


def _class_share() -> Sized:
    time = Q.rate(s.M_MODULE_DURATION, PARTS, part="_sum", by=[CLASS])
    whole = Q.rate(s.M_MODULE_DURATION, PARTS, part="_sum")
    return trend(
        "Share of time by module class",
        Query(f"{time} / on () group_left () ({whole} > 0)", of(CLASS)),
        unit="percentunit",
        width=7,
        height=10,
        stacked=True,
        maximum=1,
        calcs=("mean",),
        says=Says(
            "How the time of the measured modules is divided among their classes.",
            f"time of a class / time of all. Classes that contain others (names that end in Layer, Block, Model, LM) are left out. {NEEDS}",
            "The part of attention grows with the context; apart from that the mix changes only with the model or its code.",
            empty=NO_MODULES,
        ),
    )


def _slowest() -> Sized:
    def in_range(expression: str) -> str:
        return expression.replace(WINDOW, "$__range")

    time = in_range(Q.rate(s.M_MODULE_DURATION, part="_sum", by=ROW_OF_TABLE))
    calls = in_range(Q.count(s.M_MODULE_DURATION, by=ROW_OF_TABLE))
    steps = in_range(Q.mean(s.M_STEP_DURATION, by=[REQUEST_MODEL, PHASE]))
    forwards = in_range(Q.mean(s.M_FORWARD_DURATION, by=[MODEL_NAME]))
    passes = (
        f'(label_replace({steps}, "{MODEL_NAME}", "$1", "{REQUEST_MODEL}", "(.*)")'
        f' or label_replace({forwards}, "{PHASE}", "{s.PHASE_FORWARD}", "", ""))'
    )
    mean, chosen = f"({time} / ({calls} > 0))", f"topk($topn, {time})"
    return table(
        "Modules that take most time",
        Query(f"{mean} and {chosen}", ""),
        Query(f"{in_range(Q.quantile(0.95, s.M_MODULE_DURATION, by=ROW_OF_TABLE))} and {chosen}", ""),
        Query(f"({mean} / on ({MODEL_NAME}, {PHASE}) group_left () {passes}) and {chosen}", ""),
        Query(f"{calls} and {chosen}", ""),
        Query(chosen, ""),
        columns={
            MODULE: {"displayName": "Module", "custom__width": 190},
            CLASS: {"displayName": "Class", "custom__width": 180},
            LAYER: {"displayName": "Layer", "noValue": "-", "custom__width": 55},
            PHASE: {"displayName": "Phase", "custom__width": 70},
            "Value #A": {"displayName": "Mean", "unit": "s", "custom__width": 75},
            "Value #B": {"displayName": "p95", "unit": "s", "custom__width": 75},
            "Value #C": {"displayName": "Of a pass", "unit": "percentunit", "custom__width": 80},
            "Value #D": {"displayName": "Calls/s", "unit": "ops", "custom__width": 90},
            "Value #E": {"displayName": "Load", "unit": "percentunit", "custom__width": 70},
            MODEL_NAME: {"displayName": "Model"},
        },
        sort_by="Load",
        width=17,
        says=Says(
            "The modules that took most time in the time range; *Top* says how many. A row for each phase.",
            "mean and p95 of one call; *of a pass*: mean / mean duration of a whole forward pass in that phase; *load*: seconds of measured"
            f" calls each second. Modules are measured on sampled steps, and contain each other. {NEEDS}",
            "Start with the largest part of a pass. p95 far above the mean: something disturbs it, such as another process.",
            empty=NO_MODULES,
        ),
    )


def _layers(phase: str, matcher: str) -> Sized:
    mean = Q.mean(s.M_MODULE_DURATION, f'{LAYER}!=""', matcher, by=[LAYER, MODULE])
    return grid(
        f"Time per layer, {phase} (blue: short, purple: long)",
        Query(by_layer(mean), f"layer {of(LAYER)}"),
        unit="s",
        width=12,
        height=10,
        minimum=0,
        color=FieldColorModeId.CONTINUOUS_BL_PU,
        renamed=("/^layer 0*(\\d+)$/", "layer $1"),
        links=(to_dashboard(OVERVIEW),),
        says=Says(
            f"A line for each layer: how long a call of it takes in {phase}. Purple is the longest in view, blue next to nothing.",
            f"mean of the slowest measured module of the layer, which is the layer itself unless `modules` leaves it out. {NEEDS}",
            "All lines should look alike. One that differs has other code, another device or a hook; a column is a slow moment.",
            empty=NO_MODULES,
        ),
    )


def row() -> Row:
    """The row, closed: its title names the setting that it needs."""
    layers = (_layers(s.SPAN_DECODE, DECODE), _layers(s.SPAN_PREFILL, PREFILL))
    return Row("Modules (setting module_metric)", [_class_share(), _slowest(), *layers], closed=True)
