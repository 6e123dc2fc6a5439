"""Row of "Model internals" on the roofline: how near the model comes to what its device can do, and what limits it."""

from __future__ import annotations

from inferspan import semconv as s

from ..catalogue import label
from ..frame import Row
from ..links import GPU, to_dashboard
from ..panels import Query, Says, Sized, trend
from ..units import FLOPS
from .queries import PHASE, REQUEST_MODEL, WHOLE, of

__all__ = ["row"]

BOUND = label(s.DEVICE_BOUND)
NO_PEAKS = "the peaks of the device are not known: inferspan peaks --measure for a CPU, the setting peaks for a card"
NO_FIGURES = "the setting roofline is none, or the model has modules that are not in the table"


def _nearness() -> list[Sized]:
    share = Says(
        "How near each phase comes to the ceiling that is nearer: operations or bytes a second.",
        "median over requests of `inferspan.device.peak.share`.",
        "Decode far below 1: the host does not feed the card, see *What limits it*. A drop at the same load: clocks, other processes.",
        empty=NO_PEAKS,
    )
    bound = Says(
        "What limits the phases of requests.",
        "requests by `inferspan.device.bound`, those of each phase apart.",
        "launch: a static cache and torch.compile. memory: larger batches or quantization. compute: the card is the limit.",
        empty=NO_PEAKS,
    )
    return [
        trend(
            "Share of the peak", Query(WHOLE.quantile(0.5, s.M_DEVICE_PEAK_SHARE, by=[REQUEST_MODEL, PHASE]), of(REQUEST_MODEL, PHASE)),
            unit="percentunit", maximum=1, width=12, says=share, links=[to_dashboard(GPU)],
        ),
        trend(
            "What limits it", Query(WHOLE.count(s.M_DEVICE_PEAK_SHARE, by=[PHASE, BOUND]), of(PHASE, BOUND)), unit="ops", width=12,
            stacked=True, says=bound,
        ),
    ]  # fmt: skip


def _rates() -> list[Sized]:
    def panel(title: str, key: str, unit: str, what: str) -> Sized:
        says = Says(
            f"{what}, all requests together.",
            f"rate of `{key}`, counted from shapes.",
            "It follows the load. Compare models and phases; the height alone says nothing.",
            empty=NO_FIGURES,
        )
        return trend(title, Query(WHOLE.rate(key, by=[REQUEST_MODEL, PHASE]), of(REQUEST_MODEL, PHASE)), unit=unit, width=6, says=says)

    def use(title: str, key: str, what: str) -> Sized:
        says = Says(
            f"{what} of whole requests, waiting included.",
            f"quantiles of `{key}`.",
            "Low with a high share of the peak in decode: time goes to what is around the passes.",
            empty=NO_PEAKS,
        )
        quantiles = [
            Query(WHOLE.quantile(x, key, by=[REQUEST_MODEL]), f"{of(REQUEST_MODEL)} p{x * 100:g}", exemplar=x == 0.95) for x in (0.5, 0.95)
        ]
        return trend(title, *quantiles, unit="percentunit", width=6, says=says)

    return [
        panel("Operations", s.M_DEVICE_FLOPS, FLOPS, "Floating point operations a second"),
        panel("Memory traffic", s.M_DEVICE_BYTES, "Bps", "Least bytes a second to and from the memory of the device"),
        use("MFU", s.M_UTILIZATION_FLOPS, "Share of the peak FLOP/s"),
        use("MBU", s.M_UTILIZATION_BANDWIDTH, "Share of the peak bandwidth"),
    ]


def row() -> Row:
    """The row, closed."""
    return Row("Roofline", [*_nearness(), *_rates()], closed=True)
