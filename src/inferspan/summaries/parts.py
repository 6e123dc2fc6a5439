"""One request, or one stage of the program, on its way into the recordings that it belongs to.

In: its parts (phases, steps, stages of the model, calls of modules) as their spans are made, and its end. Out: figures in each recording.
Time inside something is taken off its own time, whichever of the two ends first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from inferspan import semconv
from inferspan.analysis.levels import PHASE, STEP, level_of, measured, module_operation, operation_of, step_name
from inferspan.records import KIND_BATCH, ModuleBatch, Phase, PhaseKey, RequestEnd, RequestStart, Stage, Step

from .events import INPUTS, OF_STEP
from .recording import Around, Call, Operation, Recording
from .requests import MOST_BARS, Bar, Ended

__all__ = ["RequestParts", "add_stage", "counts_of_span"]

CALLS_AT_ONCE = 64
"""Calls of modules that are counted before other threads can run: some 0.2 ms."""
MOST_WAITING = 10_000
"""Stages of one request that have not ended while something inside has."""
_ERROR = "error"


class Made(Protocol):
    """A finished span under a request."""

    @property
    def name(self) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def attributes(self) -> dict[str, Any]: ...


class RequestParts:
    """What a request and its parts put into recordings.

    Args:
        recordings: that it belongs to.
        name: of its span.
        start: how it began.
        around: what it lies in, if that is recorded.
    """

    def __init__(self, recordings: Sequence[Recording], name: str, start: RequestStart, around: Around | None) -> None:
        kind = "batch" if start.kind == KIND_BATCH else "method" if semconv.METHOD in start.attributes else "request"
        self.around_inside = Around((kind, name), recordings)
        self._recordings = recordings
        self._start = start
        self._around = around
        self._bars: list[Bar] = []
        self._waiting: dict[int, tuple[float, float | None]] = {}
        self._stages: dict[int, str] = {}
        self._last_prefill: dict[int | None, bool] = {}
        """By phase, whether its last prefill step has counted as one that gives a token."""
        self._with_modules: int | None = None
        self._closed: dict[int, tuple[Operation, float, float | None]] = {}
        """Steps with no modules so far, with their seconds."""
        self._open: set[int] = set()
        """Steps whose modules came first."""
        self._has_audio_stage = False
        self._audio = (start.model.name or start.model.architecture, _takes_audio(start.model.attributes))

    # ---------------------------------------------------------------------------------------------------------- parts
    def part(self, record: Phase | Step | Stage, made: Made) -> None:
        """A phase, step or stage has become a span."""
        level = level_of(made)
        operation, events = operation_of(made, level), self._events(record, made, level)
        device, delta = measured(made.attributes)
        seconds = (made.end_ns - made.start_ns) / 1e9 if 0 < made.start_ns <= made.end_ns else 0.0
        for recording in self._recordings:
            recording.add_ended(operation, made.start_ns, made.end_ns, device, delta, events)
            if level == STEP:
                recording.add_step()
        if isinstance(record, Stage):
            self._end_of_stage(record, operation, seconds, device)
        elif made.name != semconv.SPAN_BACKWARD:  # that comes after its request
            above = _operation_of(record.phase) if isinstance(record, Step) else None
            if isinstance(record, Step):
                self._step(record.number, (operation, seconds, device))
            self._inside(above or self.around_inside.operation, seconds, device)
        if made.name == semconv.STAGE_AUDIO_ENCODE:
            self._audio_stage()
        if len(self._bars) < MOST_BARS and made.name != semconv.SPAN_BACKWARD:
            begin = self._start.start_ns
            self._bars.append(Bar(operation[0], made.name, (made.start_ns - begin) / 1e9, (made.end_ns - begin) / 1e9))

    def _step(self, number: int, times: tuple[Operation, float, float | None]) -> None:
        if number in self._open:
            self._open.remove(number)
            self._open_step(*times)
        elif len(self._closed) < MOST_WAITING:
            self._closed[number] = times

    def _open_step(self, operation: Operation, seconds: float, device: float | None) -> None:
        for recording in self._recordings:
            recording.add_open(operation, seconds, device)

    def _events(self, record: Phase | Step | Stage, made: Made, level: str) -> Iterable[str]:
        if level == STEP and isinstance(record, Step):
            read = ("memory_usage",) if semconv.MEMORY_START in made.attributes else ()
            return (*OF_STEP, *read, *self._tokens(record, made))
        if level == PHASE and made.name in INPUTS:
            return (INPUTS[made.name],)
        if level == PHASE and semconv.STAGE_NAME in made.attributes:
            return ("stage_start", "stage_end")
        return ()

    def _tokens(self, step: Step, made: Made) -> Iterable[str]:
        """A choice of tokens ends every decode step, and the last part of a prompt."""
        gives = step.failure is None
        if made.name == semconv.SPAN_DECODE_STEP:
            return ("token_generation",) if gives else ()
        if made.name != semconv.SPAN_PREFILL_STEP:
            return ()
        # Nobody knows yet whether it is the last part: what the one before has counted is taken back.
        before, self._last_prefill[step.phase.number] = self._last_prefill.get(step.phase.number, False), gives
        if before:
            for recording in self._recordings:
                recording.take_back("token_generation")
        return ("token_generation",) if gives else ()

    def _end_of_stage(self, stage: Stage, operation: Operation, seconds: float, device: float | None) -> None:
        if len(self._stages) < MOST_WAITING:
            self._stages[stage.number] = stage.name
        waiting = self._waiting.pop(stage.number, None)
        if waiting is not None:
            self._inside(operation, *waiting)
        if stage.parent is None:
            above = self.around_inside.operation if stage.phase is None else _operation_of(stage.phase)
            self._inside(above or self.around_inside.operation, seconds, device)
        elif stage.parent in self._stages:
            self._inside(("stage", self._stages[stage.parent]), seconds, device)
        elif len(self._waiting) < MOST_WAITING:
            host, measured = self._waiting.get(stage.parent, (0.0, None))
            both = (measured or 0.0) + (seconds if device is None else device) if device is not None or measured is not None else None
            self._waiting[stage.parent] = (host + seconds, both)

    def _inside(self, operation: Operation, seconds: float, device: float | None) -> None:
        for recording in self._recordings:
            recording.add_inside(operation, seconds, device)

    def _audio_stage(self) -> None:
        if not self._has_audio_stage:
            self._has_audio_stage = True
            for recording in self._recordings:
                recording.add_audio(self._audio, 0, 1)

    def calls(self, batch: ModuleBatch, pause: Callable[[], None]) -> None:
        """Calls of modules, and what a profiler has seen in them, have become spans; ``pause`` is called every few of them."""
        above, count = self._above(batch), len(batch.calls)
        new_step = batch.step is not None and count > 0 and batch.step != self._with_modules
        if all([recording.add_recorded(batch, above, new_step=new_step) for recording in self._recordings]):
            pause()
        else:
            self._one_by_one(batch, above, pause, new_step=new_step)
        if new_step and batch.step is not None:
            self._with_modules = batch.step
            step = self._closed.pop(batch.step, None)
            if step is not None:
                self._open_step(*step)
            elif len(self._open) < MOST_WAITING:
                self._open.add(batch.step)
        if batch.stages and any(row[2].span_name == semconv.STAGE_AUDIO_ENCODE for row in batch.calls.rows()):
            self._audio_stage()
        if batch.profiled:
            self._profiled(batch, above)

    def _one_by_one(self, batch: ModuleBatch, above: Operation, pause: Callable[[], None], *, new_step: bool) -> None:
        rows, own, device = list(batch.calls.rows()), _operations_of(batch), batch.device
        for first in range(0, len(rows), CALLS_AT_ONCE):
            some = rows[first : first + CALLS_AT_ONCE]
            calls: list[Call] = [
                (own[row[0]], own.get(row[1], above), (row[4] - row[3]) / 1e9, device.get(row[0])) for row in some if row[3] <= row[4]
            ]
            for recording in self._recordings:
                recording.add_calls(calls)
                if batch.phase.name == semconv.SPAN_BACKWARD:
                    continue
                recording.add_modules(
                    some, batch.statistics, new_step=new_step and not first, step=batch.step, offset=batch.offset
                )
            pause()

    def _profiled(self, batch: ModuleBatch, above: Operation) -> None:
        own = _operations_of(batch) | {item.number: ("kernel", _kernel(item.attributes) or item.name) for item in batch.profiled}
        seen: list[Call] = []
        for item in batch.profiled:
            device = item.attributes.get(semconv.DEVICE_TIME)
            seconds = float(device) if type(device) is float else None
            seen.append((own[item.number], own.get(item.parent, above), max(0, item.end - item.start) / 1e9, seconds))
        for recording in self._recordings:
            recording.add_calls(seen)

    def _above(self, batch: ModuleBatch) -> Operation:
        if batch.step is None:
            return _operation_of(batch.phase) or self.around_inside.operation
        return "step", step_name(batch.phase.name)

    # ------------------------------------------------------------------------------------------------------------ end
    def ended(self, end: RequestEnd, span: Any, *, recording: bool) -> None:
        """The request has ended, and so has its span.

        Args:
            end: how it ended.
            span: its span.
            recording: whether the span is recorded; events are counted of recorded ones.
        """
        start, operation = self._start, self.around_inside.operation
        device, delta = measured(end.attributes)
        seconds = max(0.0, (end.end_ns - start.start_ns) / 1e9)
        if start.kind == KIND_BATCH:
            for one in self._recordings if recording else ():
                one.add_ended(operation, start.start_ns, end.end_ns, device, delta, ())
            return
        if self._around is not None:
            self._around.add_inside(seconds, device)
        events = _events_of_request(end, operation, span) if recording else ()
        ended = Ended(operation[1], start, end.end_ns, end.input_tokens, end.output_tokens, end.time_to_first_token,
                      end.time_per_output_token, end.failure.type if end.failure is not None else None, end.findings, self._bars,
                      span.get_span_context())  # fmt: skip
        may_take_audio = recording and self._audio[1] is not False
        for one in self._recordings:
            if one.adds_totals:
                one.totals.add(start, end, seconds)
            one.add_ended(operation, start.start_ns, end.end_ns, device, delta, events, spans=int(recording))
            one.add_request(ended, end.attributes)
            if may_take_audio:
                one.add_audio(self._audio, 1, 0)


def add_stage(
    recordings: Sequence[Recording], around: Around | None, operation: Operation, times: tuple[int, int], span: Any, *, failed: bool
) -> None:
    """A stage or session of the program has ended.

    Args:
        recordings: that it belongs to.
        around: what it lies in, if that is recorded.
        operation: what it is.
        times: begin and end in nanoseconds since the epoch.
        span: its span.
        failed: whether an exception has ended it.
    """
    attributes = getattr(span, "attributes", None)
    device, delta = measured(attributes if isinstance(attributes, Mapping) else {})
    events = ["stage_start", "stage_end", *counts_of_span(span, failed=failed)]
    for one in recordings:
        one.add_ended(operation, *times, device, delta, events, spans=int(span.get_span_context().trace_flags.sampled))
    seconds = max(0, times[1] - times[0]) / 1e9
    if around is not None:
        around.add_inside(seconds, device)


def counts_of_span(span: Any, *, failed: bool) -> list[str]:
    """Types of the events on a span: those of the program under their names, and one error at least where it failed."""
    found = [_ERROR if event.name == semconv.EXCEPTION_EVENT else str(event.name) for event in getattr(span, "events", None) or ()]
    return [*found, _ERROR] if failed and _ERROR not in found else found


def _events_of_request(end: RequestEnd, operation: Operation, span: Any) -> list[str]:
    found = counts_of_span(span, failed=end.failure is not None)
    found += ["memory_usage" for key in (semconv.MEMORY_START, semconv.MEMORY_END) if key in end.attributes]
    if operation[0] == "method" or operation[1].split(" ", 1)[0] == semconv.SPAN_FORWARD:
        return [*found, "forward_pass"]
    return [*found, "generation_start", "generation_end", *(["generation_complete"] if end.failure is None else [])]


def _takes_audio(attributes: Mapping[str, Any]) -> bool | None:
    """Whether a model takes audio; ``None`` where it does not say so."""
    told = attributes.get(semconv.MODEL_MODALITIES)
    return "audio" in told if isinstance(told, list | tuple) else None


def _operation_of(phase: PhaseKey) -> Operation | None:
    """Of a phase or stage that steps lie in; ``None`` if it has no span."""
    if phase.number is None:
        return None
    phases = (semconv.SPAN_PREFILL, semconv.SPAN_DECODE, semconv.SPAN_BACKWARD)
    return ("phase" if phase.name in phases else "stage"), phase.name


def _operations_of(batch: ModuleBatch) -> dict[int, Operation]:
    """The operation that each call is one of, by its number."""
    phase = batch.phase.name
    return {row[0]: ("module", module_operation(row[2].name or row[2].span_name, phase)) for row in batch.calls.rows()}


def _kernel(attributes: Mapping[str, Any]) -> str:
    found = attributes.get(semconv.KERNEL_NAME) or attributes.get(semconv.OP_NAME)
    return found if isinstance(found, str) else ""
