"""The figures of phases, steps and module calls of a request, computed from its records after the fact.

In: shapes and times that the records hold, the costs of the model. Out: attributes of spans and values of metrics, computed once, where
spans are made. Nothing here runs on the model's path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.records import AttributeValue, PassFacts, PassRun, Profiled

from .bound import Rates, Times, copies_of, rates_of, waits_of
from .costs import LARGEST
from .model import ENCODER, FRAMES, HEAD, PATCHES, ROWS, ModelCosts, Pass, Work

__all__ = [
    "ForwardRoofline", "OpenRoofline", "PhaseFigures", "PhaseRoofline", "RequestFigures", "RequestRoofline", "StepRoofline",
    "attributes_of", "pass_of",
]  # fmt: skip


def pass_of(costs: ModelCosts, run: PassRun, facts: PassFacts, *, whole: bool) -> Pass | None:
    """The shape of the first pass of a run; ``None`` if the cache cannot be looked into.

    Args:
        costs: of the model.
        run: passes of a request.
        facts: of the request.
        whole: whether an encoder that ran before the first pass is meant as well.
    """
    if facts.hidden:
        return None
    source = facts.source if facts.source is not None else costs.source
    return Pass(
        run.rows, run.width, run.length, facts.static, source, encodes=whole and run.first, fills=run.first, head=costs.head,
        copies=facts.copies if run.rows % facts.copies == 0 else 1,
    )


def attributes_of(work: Work | None, rates: Rates | None, *, bound: bool = True) -> dict[str, AttributeValue]:
    """The attributes of a phase, step or module; what is not known is left out."""
    if work is None:
        return {}
    # Numbers of operations that have no form in an attribute may come of a function of the program.
    rows = ((semconv.DEVICE_FLOPS, work.flops), (semconv.DEVICE_BYTES, work.bytes))
    found: dict[str, AttributeValue] = {key: value for key, value in rows if value < LARGEST}
    if rates is not None and rates.share is not None:
        found[semconv.DEVICE_PEAK_SHARE] = rates.share
    if rates is not None and rates.bound is not None and bound:
        found[semconv.DEVICE_BOUND] = rates.bound
    return found


class PhaseFigures(NamedTuple):
    """The work of a phase, and how near it came to the ceilings."""

    name: str
    work: Work
    rates: Rates


class PhaseRoofline:
    """The figures of one phase, or of a plain forward pass; computed when they are asked for.

    Args:
        costs: of the model.
        name: of the phase.
        facts: of the request.
        runs: its passes; ``None`` if the shape of one is not known.
        seconds: of the phase by the host's clock.
        device: seconds on the device, if they were measured.
        launches: seconds of its steps on the host.
    """

    def __init__(
        self, costs: ModelCosts, name: str, facts: PassFacts, runs: Sequence[PassRun] | None, seconds: float,
        device: float | None = None, launches: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self._costs, self.name, self._facts, self._runs = costs, name, facts, runs
        self._seconds, self._device, self._launches = seconds, device, launches
        self.moving: float | None = None
        """Share of the request's time in which weights were moved to the device."""
        self._known: tuple[PhaseFigures | None] | None = None

    @property
    def figures(self) -> PhaseFigures | None:
        """The figures; ``None`` if the work is not known."""
        if self._known is None:
            self._known = (self._figures(),)
        return self._known[0]

    def attributes(self) -> dict[str, AttributeValue]:
        """Those of the span of the phase."""
        figures = self.figures
        return {} if figures is None else attributes_of(figures.work, figures.rates)

    def _figures(self) -> PhaseFigures | None:
        work = self._work()
        if work is None:
            return None
        elapsed = self._seconds if self._device is None else self._device
        times = Times(
            elapsed,
            host=sum(self._launches) if self._launches and self._device is not None else None,
            copies=None if self.moving is None else self.moving * elapsed,
            asynchronous=self._costs.asynchronous,
        )
        return PhaseFigures(self.name, work, rates_of(work, times, self._costs.peaks))

    def _work(self) -> Work | None:
        if not self._runs:
            return None
        flops = size = 0
        for run in self._runs:
            shape = pass_of(self._costs, run, self._facts, whole=True)
            if shape is None or (run.passes > 1 and run.growth is None):
                return None
            work = self._costs.of_pass(shape, run.passes, run.growth or 0)
            if work is None:
                return None
            flops, size = flops + work.flops, size + work.bytes
        return Work(flops, size)


class ForwardRoofline(PhaseRoofline):
    """The figures of a plain forward pass, whose shape follows from its inputs and outputs, or from those of its modules.

    Args:
        inputs: (shape, dtype) of its inputs.
        outputs: (shape, dtype) of its outputs.
        calls: calls of its modules, for a model whose passes have no known structure.
        **options: see :class:`PhaseRoofline`.
    """

    def __init__(self, *, inputs: Sequence[Any], outputs: Sequence[Any], calls: Any, **options: Any) -> None:
        super().__init__(name=semconv.PHASE_FORWARD, runs=None, **options)
        self._inputs, self._outputs, self._calls = inputs, outputs, calls

    def _work(self) -> Work | None:
        costs, shape = self._costs, self._shape()
        if shape is not None:
            return costs.of_pass(shape)
        return None if costs.kind or self._calls is None else _of_calls(costs, self._calls)

    def _shape(self) -> Pass | None:
        costs, facts = self._costs, self._facts
        if not self._inputs or not costs.kind or facts.hidden or facts.unsure:
            return None
        taken = tuple(self._inputs[0][0])
        given = tuple(self._outputs[0][0]) if self._outputs else ()
        if costs.kind == "vision" and len(taken) == 4:
            patches = prod(size // patch for size, patch in zip(taken[2:], costs.patch, strict=True))
            return Pass(taken[0], patches + costs.extra, patches + costs.extra, patches=patches)
        if costs.kind == "encoder-decoder":
            if len(given) != 3 or given[-1] != costs.vocabulary or facts.source is None:
                return None
            if len(taken) > 2 and costs.source is None:
                return None  # embeddings of the encoder's input, or its output: the encoder has run or has not
            return Pass(given[0], given[1], facts.length or given[1], source=facts.source, encodes=True, fills=True)
        if costs.kind in ("decoder", "encoder") and len(taken) == 2:
            head = given[1] if len(given) == 3 and given[-1] == costs.vocabulary else None
            return Pass(taken[0], taken[1], facts.length or taken[1], facts.static, head=head)
        return None


def _of_calls(costs: ModelCosts, calls: Any) -> Work | None:
    """The work of a pass as the sum over the calls of its modules, if all that compute something were recorded."""
    rows = [(info.name, inputs, outputs) for _, _, info, _, _, inputs, outputs, _, _ in calls.rows()]
    if not costs.is_whole(frozenset(name for name, _, _ in rows)):
        return None
    works = [costs.of_call(*row) for row in rows if row[0] in costs.leaves]
    known = [work for work in works if work is not None]
    if len(known) < len(works) or not known:
        return None
    return Work(sum(work.flops for work in known), sum(work.bytes for work in known))


class RequestFigures(NamedTuple):
    """The figures of a whole request.

    Attributes:
        phases: of each phase whose work is known.
        attributes: of the request's span.
        flops: model FLOPs utilization, achieved rate / peak.
        bandwidth: the same of the memory's bandwidth.
    """

    phases: Sequence[PhaseFigures]
    attributes: Mapping[str, AttributeValue]
    flops: float | None
    bandwidth: float | None


class RequestRoofline:
    """The figures of one request; computed when they are asked for. Two threads that ask at once get equal ones.

    Args:
        costs: of the model.
        phases: its phases.
        seconds: of the request.
        moving: of them those in which weights were moved to the device.
    """

    def __init__(self, costs: ModelCosts, phases: Sequence[PhaseRoofline], seconds: float, moving: float = 0.0) -> None:
        self._costs, self._phases, self._seconds = costs, phases, seconds
        for phase in phases:
            phase.moving = moving / seconds if moving and seconds > 0 else None
        self._known: RequestFigures | None = None

    @property
    def figures(self) -> RequestFigures:
        """The figures of the phases; of the request only if those of all phases are known."""
        if self._known is None:
            self._known = self._figures()
        return self._known

    def _figures(self) -> RequestFigures:
        found = [phase.figures for phase in self._phases]
        known = [figures for figures in found if figures is not None]
        if not known or len(known) < len(found):
            return RequestFigures(known, {}, None, None)
        work = Work(sum(one.work.flops for one in known), sum(one.work.bytes for one in known))
        peaks = self._costs.peaks
        rates = rates_of(work, Times(self._seconds), peaks)
        attributes = attributes_of(work, rates, bound=False)
        if peaks is not None:
            ceilings = ((semconv.DEVICE_PEAK_FLOPS, peaks.flops), (semconv.DEVICE_PEAK_BANDWIDTH, peaks.bandwidth))
            attributes.update((key, value) for key, value in ceilings if value is not None)
        return RequestFigures(known, attributes, rates.flops, rates.bandwidth)


class OpenRoofline:
    """What is noted for the roofline while a request runs.

    Args:
        costs: of the model.
        every: whether steps and module calls get figures of their own.

    Attributes:
        facts: what the shapes of passes leave open.
        of_calls: gives the attributes of the module calls of the pass that is closed next.
    """

    __slots__ = ("costs", "every", "facts", "of_calls")

    def __init__(self, costs: ModelCosts, *, every: bool) -> None:
        self.costs, self.every, self.facts = costs, every, PassFacts()
        self.of_calls = StepRoofline(costs, None, self.facts) if every else None

    def of_step(self, run: PassRun | None, profiled: Sequence[Profiled] = ()) -> StepRoofline | None:
        """Gives the attributes of a step, or of the calls in it; ``None`` if these are not wanted."""
        return StepRoofline(self.costs, run, self.facts, profiled) if self.every else None


class StepRoofline(NamedTuple):
    """What the figures of one step, or of the modules in it, need beside its record."""

    costs: ModelCosts
    run: PassRun | None
    facts: PassFacts
    profiled: Sequence[Profiled] = ()
    """Rows of a profiler window over the step."""

    def of_step(self, found: Mapping[str, Any], host: float) -> dict[str, AttributeValue]:
        """The attributes of a step.

        Args:
            found: those that it has.
            host: its seconds by the host's clock.
        """
        shape = None if self.run is None else pass_of(self.costs, self.run, self.facts, whole=False)
        work = None if shape is None else self.costs.of_pass(shape)
        if work is None:
            return {}
        device = found.get(semconv.DEVICE_TIME)
        times = Times(
            host if device is None else device, host=None if device is None else host, kernels=found.get(semconv.PROFILER_KERNEL_TIME),
            copies=copies_of(self.profiled) or None, waits=waits_of(self.profiled) or None, asynchronous=self.costs.asynchronous,
        )  # fmt: skip
        timed = device is not None or not self.costs.asynchronous
        return attributes_of(work, rates_of(work, times, self.costs.peaks) if timed else None)

    def of_module(
        self, path: str, inputs: Sequence[Any], outputs: Sequence[Any], host: float, device: float | None
    ) -> dict[str, AttributeValue]:
        """The attributes of a module call.

        Args:
            path: of the module.
            inputs: (shape, dtype) of its inputs.
            outputs: (shape, dtype) of its outputs.
            host: its seconds by the host's clock.
            device: its seconds on the device, if they were measured.
        """
        work = self.costs.of_call(path, inputs, outputs)
        if work is None:
            shape = self._shape_of(path, inputs)
            work = None if shape is None else self.costs.of_module(path, shape)
        if work is None:
            return {}
        if device is None and self.costs.asynchronous:
            return attributes_of(work, None)
        times = Times(host if device is None else device, None if device is None else host, asynchronous=self.costs.asynchronous)
        return attributes_of(work, rates_of(work, times, self.costs.peaks))

    def _shape_of(self, path: str, inputs: Sequence[Any]) -> Pass | None:
        """The shape of the pass of a module with others inside, from its first input ``[rows, positions, features]``."""
        shape = tuple(inputs[0][0]) if inputs else ()
        if len(shape) != 3 or self.facts.hidden:
            return None
        rows, width, _ = map(int, shape)
        parts = self.costs.inside(path)
        if any(part.stream in (FRAMES, PATCHES, HEAD, ROWS) for part in parts):
            return None  # what is inside sees something else than its input
        if any(part.stream == ENCODER for part in parts):
            return Pass(rows, width, width, source=width, encodes=True)
        if self.run is not None and width == self.run.width:
            known = pass_of(self.costs, self.run, self.facts, whole=False)
            return None if known is None else known._replace(rows=rows)
        # Without a step there is no cache.
        return Pass(rows, width, width) if self.run is None and not any(part.cross for part in parts) else None
