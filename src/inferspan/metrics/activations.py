"""Figures of outputs as histograms, by layer: what ``output_stats`` has found in calls of modules.

In: the statistics of one call. Out: a value for each histogram, with labels of which there are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferspan import semconv
from inferspan.records import AttributeValue, ModuleInfo

__all__ = ["ActivationLabels", "values_of"]

MOST_SERIES = 500
"""Layers and classes of modules that have a series of their own in each histogram; the SDK keeps 2,000."""
HISTOGRAMS = {  # OpenTelemetry takes no negative values, so there is none of the mean
    semconv.OUTPUT_STAT_STD: semconv.M_ACTIVATION_STD,
    semconv.OUTPUT_STAT_ABS_MAX: semconv.M_ACTIVATION_ABS_MAX,
    semconv.OUTPUT_STAT_SPARSITY: semconv.M_ACTIVATION_SPARSITY,
}


def values_of(statistics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Name of the histogram and value, for each figure that there is."""
    for key, name in HISTOGRAMS.items():
        value = statistics.get(key)
        if isinstance(value, float):
            yield name, value


class ActivationLabels:
    """Labels of calls of modules; those that come after the first ``MOST_SERIES`` share one series."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int | None, str], dict[str, AttributeValue]] = {}

    def of(self, model: str, info: ModuleInfo) -> dict[str, AttributeValue]:
        """Model, layer and class of a module."""
        key = (model, info.layer_index, info.type)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_SERIES:
                return {semconv.MODEL_NAME: model, semconv.MODULE_TYPE: semconv.OTHER_MODULES}
            found = self._known[key] = {semconv.MODEL_NAME: model, semconv.MODULE_TYPE: info.type}
            if info.layer_index is not None:
                found[semconv.MODULE_LAYER_INDEX] = info.layer_index
        return found
