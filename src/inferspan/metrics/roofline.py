"""Values of the metrics of the roofline, from the figures of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferspan import semconv
from inferspan.records import AttributeValue

__all__ = ["roofline_values"]


def roofline_values(figures: Any, model: Mapping[str, AttributeValue]) -> Iterator[tuple[str, float, dict[str, AttributeValue]]]:
    """Name, value and labels of each.

    Args:
        figures: ``RequestFigures``.
        model: labels of the model.
    """
    for phase in figures.phases:
        labels: dict[str, AttributeValue] = {semconv.PHASE: phase.name, **model}
        # Sums of whole numbers would not fit into 64 bits after some hours of a large card.
        yield semconv.M_DEVICE_FLOPS, float(phase.work.flops), labels
        yield semconv.M_DEVICE_BYTES, float(phase.work.bytes), labels
        if phase.rates.share is not None:
            bound = {} if phase.rates.bound is None else {semconv.DEVICE_BOUND: phase.rates.bound}
            yield semconv.M_DEVICE_PEAK_SHARE, phase.rates.share, {**labels, **bound}
    for name, value in ((semconv.M_UTILIZATION_FLOPS, figures.flops), (semconv.M_UTILIZATION_BANDWIDTH, figures.bandwidth)):
        if value is not None:
            yield name, min(1.0, value), dict(model)
