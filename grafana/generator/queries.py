"""PromQL of the panels, put together from catalogue keys.

In: keys of ``catalogue`` (constants of ``semconv`` for our own metrics), matchers, labels to group by. Out: expressions in which names,
filters by the dashboard's variables and windows are right by construction: a filter is added only where the metric has the label, and
readings that several processes take of one device are reduced to one before anything is summed.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferspan import semconv

from .catalogue import Entry, find, label

__all__ = ["DEVICE", "WINDOW", "Queries", "or_zero", "ratio", "top"]

WINDOW = "$__rate_interval"
DEVICE = ("host_name", "hw_id", "hw_name")
"""What a reading of a device is grouped by."""

_EVERYWHERE = {
    "env": "deployment_environment_name",
    "service": "service_name",
    "host": "host_name",
    "instance": "instance",
    "job": "job",
    "rank": label(semconv.RANK),
}
_OWN = {
    "gpu": label(semconv.HW_ID),
    "phase": label(semconv.PHASE),
    "module_class": label(semconv.MODULE_TYPE),
    "layer": label(semconv.MODULE_LAYER_INDEX),
}
# A model has one name under two keys: the second is that of metrics that plain forward passes have as well.
_MODEL = (label(semconv.REQUEST_MODEL), label(semconv.MODEL_NAME))
# An agent reports hosts, not programs; a collector, a target (`up`) and an alert are no programs either: filters would hide them.
_FILTERS = {
    "inferspan": frozenset({*_EVERYWHERE, *_OWN, "model"}),
    "span_metrics": frozenset({*_EVERYWHERE, "model"}),
    "host_metrics": frozenset({"host"}),
    "prometheus": frozenset[str](),
    "collector": frozenset[str](),
}


def _by(labels: Iterable[str]) -> str:
    names = ", ".join(dict.fromkeys(labels))
    return f" by ({names})" if names else ""


def _labels(named: bool) -> tuple[str, ...]:
    return DEVICE if named else (label(semconv.HW_ID),)


def or_zero(part: str, whole: str) -> str:
    """``part``, and 0 where only ``whole`` has a series: a failure that never happened has none. Both must have the same labels."""
    return f"({part} or 0 * {whole})"


def ratio(part: str, whole: str) -> str:
    """``part / whole`` that is 0, not absent, where ``part`` has no series, and absent where nothing happened at all."""
    return f"{or_zero(part, whole)} / ({whole} > 0)"


def top(expression: str, count: str = "10") -> str:
    """The largest series at each moment."""
    return f"topk({count}, {expression})"


class Queries:
    """Expressions for one dashboard.

    Args:
        variables: names of the dashboard's variables. Each metric is filtered by those for which it has a label.
    """

    def __init__(self, variables: Iterable[str]) -> None:
        self._variables = tuple(variables)

    def _filters(self, entry: Entry) -> list[str]:
        found = []
        for name in self._variables:
            if name not in _FILTERS[entry.source]:
                continue
            wanted = _MODEL if name == "model" else (({**_EVERYWHERE, **_OWN})[name],)
            found += [f'{key}=~"${name}"' for key in wanted if key in entry.labels][:1]
        return found

    def series(self, key: str, *matchers: str, part: str = "") -> str:
        """A selector.

        Args:
            key: of the catalogue.
            matchers: more than the variables say, such as ``error_type!=""``.
            part: ``_bucket``, ``_sum`` or ``_count`` of a histogram.
        """
        entry = find(key)
        if part not in entry.parts:
            raise ValueError(f"{key} is a {entry.kind}: part must be one of {', '.join(map(repr, entry.parts))}, not {part!r}")
        needed = [f'{entry.needs}!=""'] if entry.needs and not any(item.startswith(entry.needs) for item in matchers) else []
        inside = ",".join([*self._filters(entry), *needed, *matchers])
        return f"{entry.name}{part}" + (f"{{{inside}}}" if inside else "")

    def rate(self, key: str, *matchers: str, by: Iterable[str] = (), part: str = "") -> str:
        """Sum of the rates of a counter that each process counts for itself."""
        return f"sum{_by(by)} (rate({self.series(key, *matchers, part=part)}[{WINDOW}]))"

    def count(self, key: str, *matchers: str, by: Iterable[str] = ()) -> str:
        """How many observations of a histogram a second."""
        return self.rate(key, *matchers, by=by, part="_count")

    def mean(self, key: str, *matchers: str, by: Iterable[str] = ()) -> str:
        """Mean of the observations of a histogram; absent where there were none."""
        return f"{self.rate(key, *matchers, by=by, part='_sum')} / ({self.count(key, *matchers, by=by)} > 0)"

    def quantile(self, share: float, key: str, *matchers: str, by: Iterable[str] = ()) -> str:
        """Quantile of the observations of a histogram."""
        return f"histogram_quantile({share:g}, {self.rate(key, *matchers, by=('le', *by), part='_bucket')})"

    def heat(self, key: str, *matchers: str) -> str:
        """Observations per bucket, for a heat map."""
        return f"sum by (le) (increase({self.series(key, *matchers, part='_bucket')}[{WINDOW}]))"

    def total(self, key: str, *matchers: str, by: Iterable[str] = ()) -> str:
        """Sum of a gauge that each process reports of itself."""
        return f"sum{_by(by)} ({self.series(key, *matchers)})"

    def device(self, key: str, *matchers: str, by: Iterable[str] = (), named: bool = True) -> str:
        """A reading of a device, once for each device, however many processes report it.

        ``named``: with host and name, for legends. Not named is what may be summed or counted: containers that share a card know it by
        different names.
        """
        return f"max{_by((*_labels(named), *by))} ({self.series(key, *matchers)})"

    def device_rate(self, key: str, *matchers: str, by: Iterable[str] = (), named: bool = True) -> str:
        """Rate of a counter of a device, once for each device: each process counts the same events."""
        return f"max{_by((*_labels(named), *by))} (rate({self.series(key, *matchers)}[{WINDOW}]))"

    def device_increase(self, key: str, *matchers: str, by: Iterable[str] = (), named: bool = True) -> str:
        """Increase of a counter of a device over the whole time range, once for each device."""
        return f"max{_by((*_labels(named), *by))} (increase({self.series(key, *matchers)}[$__range]))"

    def device_max(self, key: str, *matchers: str, by: Iterable[str] = (), named: bool = True) -> str:
        """Largest reading of a device in the whole time range."""
        return f"max{_by((*_labels(named), *by))} (max_over_time({self.series(key, *matchers)}[$__range]))"

    def either(
        self, first: str, second: str, part: str, by: Iterable[str] = (), *, matcher: str = "", both: str = "", function: str = "rate"
    ) -> str:
        """Sum of the rates of a metric that the setting ``semconv`` gives one of two names; where a process has both, the first counts.

        Args:
            first: key of the newer name.
            second: key of the older one, a histogram.
            part: ``_bucket``, ``_count`` or ``_sum``; the first, if it is a counter, has none.
            by: labels to group by.
            matcher: for the second.
            both: a matcher for both.
            function: ``rate``, or ``increase`` for heat maps.
        """
        inner = _by(("instance", *by))
        newer = self.series(first, *filter(None, [both]), part=part if part in find(first).parts else "")
        older = self.series(second, *filter(None, [matcher, both]), part=part)
        rates = (f"sum{inner} ({function}({selector}[{WINDOW}]))" for selector in (newer, older))
        return f"sum{_by(by)} ({' or '.join(rates)})"

    def tokens(self, direction: str, by: Iterable[str] = ()) -> str:
        """Tokens a second, ``input`` or ``output``, whichever of the conventions a process follows."""
        counter = semconv.M_USAGE_OUTPUT if direction == "output" else semconv.M_USAGE_INPUT
        return self.either(counter, semconv.M_LEGACY_USAGE, "_sum", by, matcher=f'gen_ai_token_type="{direction}"')

    def tokens_per_call(self, direction: str) -> str:
        """Rates of the buckets of tokens per call, by ``le``."""
        histogram = semconv.M_OPERATION_OUTPUT if direction == "output" else semconv.M_OPERATION_INPUT
        return self.either(histogram, semconv.M_LEGACY_USAGE, "_bucket", ["le"], matcher=f'gen_ai_token_type="{direction}"')
