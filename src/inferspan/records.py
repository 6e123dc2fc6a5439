"""Records that sources hand to sinks: frozen values without torch, and the protocols between the layers.

Times are nanoseconds since the Unix epoch, shapes and dtypes plain values, never tensors or modules. Attribute keys are
those of ``semconv``. Detail of a request (phases, steps, module calls) is appended on the model's path and turned into
spans later, so these records are ``NamedTuple``s: cheap to make, and still named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from .module_records import (
    FlowCall,
    FlowEdge,
    ModuleCall,
    ModuleCalls,
    ModuleColumns,
    ModuleInfo,
    ModuleRow,
    ModuleStage,
    Moments,
    PassFacts,
    PassFlow,
    PassRun,
    RowFigures,
)  # fmt: skip

__all__ = [
    "KIND_BATCH", "AttributeValue", "BatchFigures", "Failure", "FlowCall", "FlowEdge", "LoadEnd", "LoadRecorder", "LoadScope", "Message",
    "ModelInfo", "ModuleBatch", "ModuleCall", "ModuleCalls", "ModuleColumns", "ModuleInfo", "ModuleRow", "ModuleStage", "Moments",
    "PassFacts", "PassFlow", "PassRun", "Phase", "PhaseKey", "Profiled", "Record", "Recorder", "RequestEnd", "RequestScope",
    "RequestStart", "RowFigures", "Sample", "Sampler", "Stage", "Step",
]  # fmt: skip

AttributeValue = bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]
Attributes = Mapping[str, AttributeValue]
KIND_BATCH = "batch"
"""Kind of a batch, whose steps several requests share; no request itself."""
_NOT_MEASURED: Mapping[int, float] = MappingProxyType({})
_NO_TOKENS: Mapping[int, int] = MappingProxyType({})


class Failure(NamedTuple):
    """An exception of the user's program, reduced to text so that nothing of it is kept alive."""

    type: str
    message: str
    stacktrace: str


class Message(NamedTuple):
    """One chat message of captured content; exists only when content capture is switched on."""

    role: str
    text: str
    finish_reason: str | None = None


class Profiled(NamedTuple):
    """One kernel or operation that a profiler window has seen; times as in ``ModuleCall``.

    ``number`` differs from those of the module calls of its batch; ``parent`` is the number of the operation or module call that it
    hangs under, -1 directly under the step. A kernel runs on the device when the device comes to it, so it may end after its parent.
    """

    number: int
    parent: int
    name: str
    start: int
    end: int
    attributes: Attributes


class PhaseKey(NamedTuple):
    """The phase or stage that steps and module calls lie in: its name, which they have as their phase, and its number in the request.

    Phases and stages of a request are numbered in one series. Without a number the spans lie directly under the request.
    """

    name: str
    number: int | None = None


class ModuleBatch(NamedTuple):
    """The module calls of one forward pass; without a ``step`` they lie under the phase, stage or request."""

    step: int | None
    phase: PhaseKey
    offset: int
    calls: ModuleCalls
    statistics: Mapping[int, Attributes]
    device: Mapping[int, float] = _NOT_MEASURED
    """Seconds on the device by the ``number`` of a call; one that is missing was not measured."""
    profiled: Sequence[Profiled] = ()
    stages: int = 0
    """Calls of stages among the calls."""
    tokens: Mapping[int, int] = _NO_TOKENS
    """Tokens of the sequence that the output of a stage stands for, by the ``number`` of its call, where that is known."""
    flow: PassFlow | None = None
    """How tensors flowed between the calls, if that was recorded."""
    roofline: Any = None
    """Gives the attributes of the roofline of calls, if they are wanted."""
    collectives: Mapping[int, float] = _NOT_MEASURED  # seconds in collectives by the ``number`` of a call, where a profiler saw some


class Step(NamedTuple):
    """One forward pass of the generating model; ``number`` 0 is the (first) prefill pass.

    ``size`` is roughly what it takes in memory until its attributes are made, in bytes.
    """

    number: int
    phase: PhaseKey
    start_ns: int
    end_ns: int
    failure: str | None
    attributes: Attributes | Callable[[], Attributes]
    size: int = 1500
    links: Sequence[RequestScope] = ()
    """Requests of a batch that ran in it; empty for a step of one request."""
    roofline: Any = None
    """Gives its attributes of the roofline, if they are wanted."""


class Phase(NamedTuple):
    """``prefill`` or ``decode`` of one request."""

    key: PhaseKey
    start_ns: int
    end_ns: int
    failure: str | None
    attributes: Attributes
    roofline: Any = None
    """Gives its attributes of the roofline, if they are known."""


class Stage(NamedTuple):
    """A part of a model that has run in a request, such as its vision encoder or one denoising step.

    ``number`` is one of its request's own; ``parent`` is the number of the stage around it. Without one it lies under ``phase``, and
    without that under the request.
    """

    number: int
    name: str
    start_ns: int
    end_ns: int
    failure: str | None
    attributes: Attributes | Callable[[], Attributes]
    parent: int | None = None
    phase: PhaseKey | None = None


Record = Phase | Step | Stage | ModuleBatch
"""Detail of a request."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Static facts of an instrumented model; ``None`` is "not known" and is left out of the telemetry."""

    name: str | None
    provider: str
    architecture: str
    attributes: Attributes = field(default_factory=dict)
    costs: Any = field(default=None, compare=False)
    """``ModelCosts`` of the model, if they are wanted."""
    ranks: Any = field(default=None, compare=False)
    """``RankGroup`` of the ranks that run each request on the model together."""


@dataclass(frozen=True, slots=True)
class RequestStart:
    """A call of the user's that begins: one ``generate()``, one plain forward pass or method, or one call of a pipeline."""

    kind: str
    """``generate``, ``forward`` or ``pipeline``; or ``KIND_BATCH``, which is no call of the user's."""
    operation: str | None
    model: ModelInfo
    start_ns: int
    nested: bool
    attributes: Attributes
    streamer: Callable[[], Any] | None = None
    """Gives the streamer of the call while it lives."""
    attached: bool = True
    """Whether the span of a ``generate()`` or pipeline is the current one until its end; false for a request that other threads work on."""
    begun: Callable[[Any], None] | None = None
    """Is given the scope as soon as there is one: an interrupt that comes then must not lose it."""


class BatchFigures(NamedTuple):
    """Steps of a batch that requests share: one entry for each step, and the latest state of the loop."""

    requests: Sequence[int]
    tokens: Sequence[int]
    waiting: int
    blocks_used: int | None
    blocks_limit: int | None


# Not frozen: Python sets each of these forty fields by a function call then, three times in a short request.
@dataclass(slots=True)
class RequestEnd:
    """How a request ended. Counts that are not known are ``None``, never 0; durations are seconds.

    Whoever knows more adds it, on the thread of the request; nothing changes once the end is handed over.
    """

    end_ns: int
    failure: Failure | None
    attributes: Attributes
    input_tokens: int | None = None
    output_tokens: int | None = None
    longest_output: int | None = None
    time_to_first_token: float | None = None
    time_per_output_token: float | None = None
    chunk_intervals: Sequence[float] = ()
    batch_size: int | None = None
    kv_cache_bytes: int | None = None
    step_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Durations of the steps by name of the phase."""
    stages: Sequence[tuple[str, float]] = ()
    """Names and durations of the stages of the model."""
    entropies: Sequence[float] = ()
    top1_probabilities: Sequence[float] = ()
    token_entropies: Sequence[float] = ()
    """Of the first sequence, token by token, in nats, bounded; empty where steps are not its tokens."""
    nonfinite: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Values of the logits by (place, kind); those of module outputs stand in the statistics of their batches."""
    step_rows: float | None = None
    """Sequences that ran in a step, on average."""
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    time_in_queue: float | None = None
    """Seconds from the arrival to the first step, for loops that queue their requests."""
    preemptions: int = 0
    """How often the loop has taken the request out of its batch and queued it again."""
    batch: BatchFigures | None = None
    """The steps, where it is not a request that ends but a batch."""
    bad_outputs: Sequence[Any] = ()
    """The first ``BadOutput`` of each module whose output had NaN or Inf, in order, at most 16."""
    events: Sequence[tuple[str, int, Attributes]] = ()
    """Further events of the request's span: name, nanoseconds since the epoch, attributes."""
    top_logits: Sequence[Any] = ()
    """``TopLogits`` of the passes, where they are wanted."""
    attention_maps: Callable[[], Iterable[Any]] | None = None
    """Makes an ``AttentionMap`` of each call whose weights were kept."""
    spans_dropped: int = 0
    overhead_ns: int = 0
    timed: bool = True
    """False for a forward pass that has returned before it ran, so that its duration is not known."""
    streaming: bool = False
    modality: str = "text"
    """Of all input tokens, where they are not split."""
    output_modality: str = "text"
    input_split: Mapping[str, int] = field(default_factory=dict)
    """Input tokens by modality, where that is known; they add up to ``input_tokens``."""
    cached_split: Mapping[str, int] = field(default_factory=dict)
    """Those that were in a cache already; empty if there were none."""
    input_messages: Sequence[Message] = ()
    output_messages: Sequence[Message] = ()
    sequences: Sequence[Sequence[int]] = ()
    """Ids of the tokens of each returned sequence. They are content: only figures of them may leave without its capture."""
    figures: Sequence[RowFigures] = ()
    """Of each sequence, or of all of them together; empty if no logits were seen."""
    nonfinite_logits: int = 0
    decode: Callable[[int], str] | None = None
    """Text of a token id, where spans may carry such; ``None`` also without a tokenizer."""
    roofline: Any = None
    """``RequestRoofline``, whose figures are computed when they are asked for."""
    findings: Sequence[str] = ()
    """Kinds of what is wrong with the output."""
    drift: Mapping[str, float] = field(default_factory=dict)
    """Shift of the latest outputs from a baseline by figure, in standard deviations."""

    @property
    def input_by_modality(self) -> Mapping[str, int]:
        """Input tokens by modality; 0 of ``unknown`` modality where their number is not known."""
        if self.input_tokens is None:
            return {"unknown": 0}
        return self.input_split or {self.modality: self.input_tokens}

    @property
    def output_by_modality(self) -> Mapping[str, int]:
        """Output tokens by modality, as for the input."""
        return {"unknown": 0} if self.output_tokens is None else {self.output_modality: self.output_tokens}


class RequestScope(Protocol):
    """A request that is running, as the sources see it."""

    recording: bool
    """Whether detail (steps, modules, statistics) of this request will be kept."""

    def detail(self, records: Sequence[Record]) -> None:
        """Hand over detail of the running request; parents come no later than the call of ``end``."""

    def attach(self) -> None:
        """Make the request's span the current one; only where one function calls this and ``detach``, in its ``finally``."""

    def detach(self) -> None:
        """Restore the context from before ``attach``; does nothing the second time or without it."""

    def enter(self) -> None:
        """After ``attach``: stay current until ``leave``, which may come in any order, in another context and on another thread."""

    def leave(self) -> None:
        """Make current what was before ``enter``, unless something else is current here."""

    def end(self, end: RequestEnd) -> None:
        """End the request and detach; called exactly once, on the thread that started it."""


class Recorder(Protocol):
    """Takes the observations of the sources."""

    def start(self, start: RequestStart, parent: RequestScope | None) -> RequestScope | None:
        """Begin a request; for a ``generate`` its span is the current one until ``end``, for others if ``attach`` is called.

        ``parent`` is the request of ours inside which this one runs. ``None`` comes back where the caller has switched
        telemetry off for the moment (``suppress_instrumentation``).
        """

    def add_source(self, collect: Callable[[], None]) -> Callable[[], None]:
        """Call ``collect`` whenever everything recorded is handed over; returns what ends that."""

    def soon(self, collect: Callable[[], None]) -> bool:
        """Call ``collect`` on the hand-over thread; false if too much waits there."""


class LoadEnd(NamedTuple):
    """How loading a model, tokenizer or pipeline has ended. Times are nanoseconds since the epoch."""

    end_ns: int
    failure: Failure | None
    attributes: Attributes
    parts: Sequence[tuple[str, int, int]]
    """Name, begin and end of the parts that were seen."""
    checkpoint: Attributes
    """What is known of the files; empty if there were none."""


class LoadScope(Protocol):
    """Loading that is under way."""

    def end(self, end: LoadEnd) -> None:
        """Called exactly once, on the thread that started it."""


class LoadRecorder(Protocol):
    """Where what is loaded is recorded."""

    def start_load(self, kind: str, name: str | None, start_ns: int) -> LoadScope | None:
        """Begin; the span is the current one until ``end``. ``None`` where telemetry is switched off."""


class Sample(NamedTuple):
    """One reading of the machine: metric name, value and attributes; a reading that failed is no ``Sample`` at all."""

    metric: str
    value: float
    attributes: Attributes


class Sampler(Protocol):
    """A source of machine readings. ``collect`` returns what could be read, and never raises for what could not."""

    def collect(self) -> Sequence[Sample]:
        """Read everything that this source has; runs on the sampler thread only."""

    def close(self) -> None:
        """Release everything that ``collect`` opened; may be called twice."""
