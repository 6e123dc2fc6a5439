"""Row of "Model internals" about mixtures of experts: how evenly their routers share out the tokens."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import FieldColorModeId

from inferspan import semconv as s

from ..charts import grid, heat
from ..frame import Row
from ..links import OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, trend
from ..units import TIMES
from .queries import LAYER, MODEL_NAME, WHOLE, Q, by_layer, of

__all__ = ["row"]

NEEDS = "Needs the setting `routing` (`INFERSPAN_ROUTING=true`)."
EMPTY = "no experts are observed: set INFERSPAN_ROUTING=true or routing=True"


def _panels() -> list[Sized]:
    over_time = Says(
        "How many times its share the busiest expert of a router gets: 1 if all experts get as many tokens.",
        f"quantiles over recorded calls of routers of `inferspan.experts.imbalance`. {NEEDS}",
        "A batch waits for its busiest expert. Rising after a change of the prompts: the experts are trained for others.",
        empty=EMPTY,
    )
    spread = Says(
        "How many calls of routers were how uneven.",
        f"increase of the buckets of `inferspan.experts.imbalance`. {NEEDS}",
        "Single tokens are always uneven: compare prefill, or large batches. A dot leads to the trace of a request.",
        empty=EMPTY,
    )
    layers = Says(
        "A line for each layer with experts: purple is the most uneven in view, blue the most even.",
        f"mean of `inferspan.experts.imbalance` by layer. {NEEDS}",
        "One layer that stays purple: its router prefers few experts. The spans of its router have the tokens of each.",
        empty=EMPTY,
    )
    quantiles = [
        Query(Q.quantile(x, s.M_EXPERTS_IMBALANCE, by=[MODEL_NAME]), f"{of(MODEL_NAME)} p{x * 100:g}", exemplar=x == 0.95)
        for x in (0.5, 0.95)
    ]
    mean = WHOLE.mean(s.M_EXPERTS_IMBALANCE, f'{LAYER}!=""', by=[LAYER])
    return [
        trend("Busiest expert against the mean", *quantiles, unit=TIMES, says=over_time, links=[to_dashboard(OVERVIEW)]),
        heat("Busiest expert: distribution", Q.heat(s.M_EXPERTS_IMBALANCE), unit=TIMES, exemplar=True, says=spread),
        grid(
            "Busiest expert by layer (blue: even, purple: uneven)", Query(by_layer(mean), f"layer {of(LAYER)}"), unit=TIMES, width=8,
            minimum=1, color=FieldColorModeId.CONTINUOUS_BL_PU, renamed=("/^layer 0*(\\d+)$/", "layer $1"), says=layers,
        ),
    ]


def row() -> Row:
    """The row, closed: its title names the setting that it needs."""
    return Row("Experts (setting routing)", _panels(), closed=True)
