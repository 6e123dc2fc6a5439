"""The dashboard "Model internals": where the time of a forward pass goes, how certain the model is, what it holds in memory.

In front: steps and non-finite values. Closed rows below: tokens of a pass, stages, memory, own cost, and what needs a setting, which their
titles name.
"""

from __future__ import annotations

from typing import Any

from inferspan import semconv as s

from ..charts import heat
from ..frame import Row, frame
from ..links import GPU, MODEL, OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, override, stats, trend
from ..queries import WINDOW, or_zero
from ..units import TOKENS, VALUES
from . import batching, compiling, detail, experts, health, modules, parts, roofline
from .queries import (
    DECODE,
    LAYER,
    MODULE,
    NAMES,
    NO_STEPS,
    NONFINITE_TRACES,
    PHASE,
    PREFILL,
    WHOLE,
    Q,
    busy,
    of,
    overhead,
    tokens_per_pass,
)

__all__ = ["dashboard"]

NONFINITE_HELP = "Modules need the setting `output_stats` (`INFERSPAN_OUTPUT_STATS=true`)."


def _nonfinite() -> str:
    """0 for programs that report and have seen none: the counter begins with the first one."""
    seen = f"sum (increase({Q.series(s.M_NONFINITE)}[$__range]))"
    return or_zero(seen, f"count ({WHOLE.series(s.M_OVERHEAD)})")


def _median(phase: str, matcher: str, what: str) -> Sized:
    return stats(
        f"{phase.capitalize()} step p50",
        Query(WHOLE.quantile(0.5, s.M_STEP_DURATION, matcher), phase),
        unit="s",
        says=Says(
            f"Half of the forward passes for {what} are faster than this.",
            "quantile of `inferspan.generate.step.duration`, host clock.",
            "Compare with an earlier time; *Steps* and *Modules* say where the time goes.",
            empty=NO_STEPS,
        ),
        links=[to_dashboard(OVERVIEW)],
    )


def _at_a_glance() -> list[Sized]:
    return [
        _median(s.SPAN_PREFILL, PREFILL, "a prompt"),
        _median(s.SPAN_DECODE, DECODE, "one more token"),
        stats(
            "Tokens per pass",
            Query(tokens_per_pass(), "all models"),
            unit=TOKENS,
            decimals=2,
            says=Says(
                "How many tokens a forward pass gives, over the batch, all models together.",
                "generated tokens / forward passes of generate().",
                "The size of the batch is normal, more with assisted decoding. Less: beams, or calls that failed.",
                empty=NO_STEPS,
            ),
        ),
        stats(
            "Non-finite values",
            Query(_nonfinite(), "values"),
            unit=VALUES,
            base="green",
            limits=((1, "red"),),
            decimals=0,
            sparkline=False,
            links=[NONFINITE_TRACES],
            says=Says(
                "NaN and Inf in the logits and in outputs of modules, in the time range.",
                f"increase of `inferspan.numerics.nonfinite`. {NONFINITE_HELP}",
                "Anything above 0: click for the traces; the lowest layer in *Non-finite values by place* is the source.",
                empty="no program reports",
            ),
        ),
        stats(
            "GPU busy",
            Query(busy(), "cards"),
            unit="percentunit",
            links=[to_dashboard(GPU)],
            says=Says(
                "Share of the time in which the cards had something to compute.",
                "mean of `hw.gpu.utilization` over the cards.",
                "Low while steps are slow: the host does not feed the card. Larger batches help, or torch.compile.",
                empty="no NVIDIA GPU, or split by MIG",
            ),
        ),
        stats(
            "Own overhead",
            Query(overhead(), "overhead"),
            unit="percentunit",
            decimals=2,
            base="green",
            limits=((0.02, "orange"), (0.05, "red")),
            says=Says(
                "Share of the requests' time that inferspan itself took, on the threads of the model.",
                "`inferspan.telemetry.overhead` / duration of generate() calls and plain forward passes.",
                'Above 2 %: fewer details, such as `steps="sampled"`, `modules="none"` or `logits=False`.',
                empty=NO_STEPS,
            ),
        ),
    ]


def _numerics() -> Sized:
    places = f"sum by ({LAYER}, {MODULE}, kind) (increase({Q.series(s.M_NONFINITE)}[{WINDOW}])) > 0"
    return trend(
        "Non-finite values by place",
        Query(places, of(MODULE, "kind")),
        unit=VALUES,
        width=12,
        calcs=("max",),
        links=[NONFINITE_TRACES],
        says=Says(
            "Where NaN and Inf were seen; `logits` is what the model gives at last.",
            f"increase of `inferspan.numerics.nonfinite` by module. {NONFINITE_HELP}",
            "The lowest layer is the source, those above only pass it on. A click leads to the traces.",
            empty="none seen, as it should be",
        ),
    )


def _pace() -> Sized:
    panel = trend(
        "Step time and GPU",
        Query(WHOLE.quantile(0.5, s.M_STEP_DURATION, DECODE), "decode p50"),
        Query(busy(), "GPU busy"),
        unit="s",
        width=12,
        links=[to_dashboard(GPU)],
        says=Says(
            "Whether the card or the host sets the pace.",
            "median of the decode steps (left) and mean utilisation of the cards (right).",
            "Slow steps on a busy card: the card is the limit. Slow steps on an idle card: the host is (Python, data, a lock).",
            empty="no generate(), and no GPU that reports utilisation",
        ),
    )
    lines: Any = panel.builder
    lines.override_by_name("GPU busy", override(unit="percentunit", min=0, max=1, custom__axisPlacement="right"))
    return panel


def _steps() -> list[Sized]:
    shares = (0.5, 0.95, 0.99)
    quantiles = [Query(Q.quantile(x, s.M_STEP_DURATION, by=[PHASE]), f"{of(PHASE)} p{x * 100:g}", exemplar=x == 0.95) for x in shares]
    time = Says(
        "How long a forward pass takes, in prefill and in decode. The axis is logarithmic.",
        "quantiles of `inferspan.generate.step.duration`, host clock.",
        "Decode rises: longer contexts or larger batches. p99 far above p95: pauses, such as compilation or another process.",
        empty=NO_STEPS,
    )
    spread = Says(
        "How many steps took how long.",
        "increase of the buckets of `inferspan.generate.step.duration`.",
        "Two bands are two kinds of requests. A dot leads to the trace of one.",
        empty=NO_STEPS,
    )
    return [
        trend("Step time", *quantiles, unit="s", logarithmic=True, says=time, links=[to_dashboard(OVERVIEW)]),
        heat("Decode steps", WHOLE.heat(s.M_STEP_DURATION, DECODE), unit="s", exemplar=True, says=spread),
        heat("Prefill steps", WHOLE.heat(s.M_STEP_DURATION, PREFILL), unit="s", exemplar=True, says=spread),
    ]


def dashboard() -> dict[str, Any]:
    """The dashboard as JSON."""
    rows = [
        Row("At a glance", [*_at_a_glance(), _pace(), _numerics()]),
        Row("Steps", _steps()),
        *parts.rows(),
        modules.row(),
        roofline.row(),
        experts.row(),
        batching.row(),
        compiling.row(),
        health.row(),
        *detail.rows(),
    ]
    return frame(MODEL, "Where the time of a forward pass goes, how certain the model is, what it holds in memory.", rows, NAMES)
