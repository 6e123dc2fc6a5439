"""What the rows of "Model internals" have in common: variables, queries, labels, texts."""

from __future__ import annotations

from inferspan import semconv as s

from ..catalogue import label
from ..links import to_traces
from ..queries import Queries
from ..variables import COMMON

__all__ = [
    "CLASS",
    "DECODE",
    "LAYER",
    "MODEL_NAME",
    "MODULE",
    "NAMES",
    "NONFINITE_TRACES",
    "NO_STEPS",
    "PHASE",
    "PREFILL",
    "REQUEST_MODEL",
    "WHOLE",
    "Q",
    "busy",
    "by_layer",
    "of",
    "overhead",
    "tokens_per_pass",
]

NAMES = (*COMMON, "phase", "module_class", "layer", "topn", "trace_service")
Q = Queries(NAMES)
WHOLE = Queries(COMMON)
"""For ratios over requests, which a choice of phase, class or layer must not cut in half."""

PHASE, REQUEST_MODEL, MODEL_NAME, STAGE_NAME = label(s.PHASE), label(s.REQUEST_MODEL), label(s.MODEL_NAME), label(s.STAGE_NAME)
MODULE, CLASS, LAYER = label(s.MODULE_NAME), label(s.MODULE_TYPE), label(s.MODULE_LAYER_INDEX)
DECODE, PREFILL = f'{PHASE}="{s.SPAN_DECODE}"', f'{PHASE}="{s.SPAN_PREFILL}"'

NO_STEPS = "no generate() in this time range"
NONFINITE_TRACES = to_traces("Traces with non-finite values", tags=f"{s.NONFINITE}=true")


def of(*labels: str) -> str:
    """A legend of the values of labels."""
    return " ".join("{{" + name + "}}" for name in labels)


def by_layer(expression: str) -> str:
    """The largest value of each layer, in the order of the layers: series are sorted as texts, and 10 would come before 2."""
    padded = f"max by ({LAYER}) ({expression})"
    for zeros, digits in (("0", ".."), ("00", ".")):
        padded = f'label_replace({padded}, "{LAYER}", "{zeros}$1", "{LAYER}", "({digits})")'
    return padded


def overhead() -> str:
    """Our own time as a share of the requests' time; of generate() and plain forward passes one may not exist."""
    parts = (WHOLE.rate(key, part="_sum") for key in (s.M_SERVER_DURATION, s.M_FORWARD_DURATION))
    calls = " + ".join(f"({part} or vector(0))" for part in parts)
    return f"{WHOLE.rate(s.M_OVERHEAD)} / (({calls}) > 0)"


def tokens_per_pass(*by: str) -> str:
    """Generated tokens per forward pass of generate(), by labels."""
    return f"{WHOLE.tokens('output', by)} / ({WHOLE.count(s.M_STEP_DURATION, by=by)} > 0)"


def busy() -> str:
    """Mean utilisation of the cards."""
    general = f'{label(s.HW_GPU_TASK)}="general"'
    return f"avg ({WHOLE.device(s.M_GPU_UTILIZATION, general, named=False)})"
