"""Row of "Model internals" about findings of the analysis: texts that repeat themselves, and logits that say little."""

from __future__ import annotations

from inferspan import semconv as s

from ..catalogue import label
from ..frame import Row
from ..panels import Query, Says, Sized, trend
from ..units import DEVIATIONS
from .queries import REQUEST_MODEL, WHOLE, of

__all__ = ["row"]

KIND = label(s.HEALTH_KIND)
EMPTY = "no finding in this time range, as it should be"


def _panels() -> list[Sized]:
    count = Says(
        "Requests whose output gave rise to a finding, by kind: low confidence, a loop, flat logits, values that are not finite.",
        "rate of `inferspan.health.findings`, at most one a request and kind.",
        "`loop`: sampling or the prompt; `flat` and `low`: the wrong checkpoint, template or quantisation;"
        " `nonfinite`: the lowest module in *Non-finite values by place*.",
        empty=EMPTY,
    )
    share = Says(
        "Share of the requests of each model with a finding of this kind.",
        "findings / calls that ended.",
        "A jump after a release comes from the release. The traces have the findings as attributes and events.",
        empty=EMPTY,
    )
    found = WHOLE.rate(s.M_HEALTH_FINDINGS, by=[REQUEST_MODEL, KIND])
    calls = WHOLE.count(s.M_SERVER_DURATION, by=[REQUEST_MODEL])
    # Two rates of the same requests may differ in their last digits.
    share_found = f"clamp_max({found} / on ({REQUEST_MODEL}) group_left () ({calls} > 0), 1)"
    of_calls = Query(share_found, of(REQUEST_MODEL, KIND))
    by_kind = Query(WHOLE.rate(s.M_HEALTH_FINDINGS, by=[KIND]), of(KIND))
    drift = Says(
        "How far the outputs of the latest 100 requests are from the baseline, by figure.",
        "mean of `inferspan.health.drift` over the instances, in standard deviations of single requests. With the setting `baseline`.",
        "Far from 0 after a release: compare the sessions with `inferspan baseline --against`. Other prompts shift the figures as well.",
        empty="no process has the setting `baseline`",
    )
    figure = label(s.HEALTH_FIGURE)
    shifted = Query(f"avg by ({REQUEST_MODEL}, {figure}) ({WHOLE.series(s.M_HEALTH_DRIFT)})", of(REQUEST_MODEL, figure))
    return [
        trend("Findings by kind", by_kind, unit="ops", width=8, says=count),
        trend("Findings of requests", of_calls, unit="percentunit", width=8, says=share),
        trend("Drift from the baseline (setting baseline)", shifted, unit=DEVIATIONS, width=8, says=drift),
    ]


def row() -> Row:
    """The row, closed."""
    return Row("Findings of the analysis", _panels(), closed=True)
