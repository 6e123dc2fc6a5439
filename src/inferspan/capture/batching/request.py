"""One request of continuous batching, from its arrival to its end, made on the caller's thread and ended on another one.

Its span is never the current one, as nothing of the request runs on the caller's thread. Forward passes are those of the batch
(``batch``), so it has its phases and no steps of its own. Times are readings of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from inferspan import messages, semconv
from inferspan.capture.budget import Budget
from inferspan.capture.call import Call
from inferspan.capture.compile.watch import compiling
from inferspan.capture.generate.end import Measured, describe_end
from inferspan.capture.outcome import Outcome
from inferspan.capture.owner import Owner
from inferspan.capture.recording import open_call
from inferspan.guard import contain, read_attribute
from inferspan.records import AttributeValue, Failure, Message, Phase, PhaseKey, RequestEnd

__all__ = ["BatchedRequest", "start_request"]

KIND = "generate"


class _Ids(list[int]):
    """Token ids as the decoder of captured content reads them."""

    def tolist(self) -> list[int]:
        """The ids."""
        return list(self)


def _end_tokens(value: Any) -> frozenset[int]:
    return frozenset(value if isinstance(value, list | tuple | set) else () if value is None else (value,))


class BatchedRequest(Call):
    """A request of continuous batching.

    Args:
        owner: instrumentation of the model.
        config: the generation config of the loop.
        chat: messages that the prompt was made of, where that is known and content is captured.
        **options: see :class:`Call`.

    Attributes:
        request_id: the loop's own id, once it is known.
        arrived: whether the loop has made a state of it.
        finished: whether its span has ended.
        expected: sequences that it returns.
    """

    def __init__(self, owner: Owner, config: Any, chat: Sequence[Any] | None, **options: Any) -> None:
        super().__init__(budget=Budget(owner.settings.span_budget, steps=False), **options)
        self.owner = owner
        self.counts = "generated"
        self._chat = chat
        self.request_id = ""
        self.names: tuple[str, ...] = ()
        """The ids of its sequences in the loop, its own last."""
        self.arrived = self.finished = False
        self.expected = 1
        self._warmup = owner.first_call
        self._configuration: dict[str, AttributeValue] = _configuration(config)
        self._prompt: int | None = None
        self._ends: frozenset[int] = frozenset()
        self._failure: Failure | None = None
        self._outputs: dict[str, Any] = {}
        self._scheduled: int | None = None
        self._first_token: int | None = None
        self._token_times: list[int] = []
        self._chunks = self._computed = self._decoded = self._rows = self._preemptions = 0

    def arrive(self, state: Any) -> None:
        """The loop has made a state of it, which is queued next."""
        self.arrived = True
        self.request_id = state.request_id
        self._prompt = len(state.initial_tokens)
        self._ends = _end_tokens(state.eos_token_id)
        self.expected = 1 + state.num_children
        found = self._configuration
        found[semconv.RESPONSE_ID] = str(self.request_id)
        if state.max_new_tokens is not None:
            found[semconv.REQUEST_MAX_TOKENS] = state.max_new_tokens
        if state.streaming:
            found[semconv.REQUEST_STREAM] = True
        if self.expected != 1:
            found[semconv.REQUEST_CHOICE_COUNT] = self.expected
        self.names = (*(f"{self.request_id}__child#{number}" for number in range(state.num_children)), self.request_id)

    # -------------------------------------------------------------------------------------------------------------- steps
    def prefills(self, state: Any) -> bool:
        """Whether the coming step computes a part of its prompt, once more after it was preempted."""
        return self._first_token is None or state.query_length > 1

    def ran(self, state: Any, start: int, end: int, rows: int) -> None:
        """It has been in a step, beside the other ``rows`` requests; ``state`` is its place in that."""
        if state.state.request_id != self.request_id:
            return
        self._rows += rows
        if self._scheduled is None:
            self._scheduled = max(start, self.start)
        if self._first_token is None:
            self._chunks += 1
            self._computed += state.query_length
            if state.has_new_token:
                self._first_token = end
        else:
            self._decoded += 1
        if state.has_new_token:
            self._token_times.append(end)

    def preempt(self) -> None:
        """It was taken out of the batch and queued again."""
        self._preemptions += 1
        if self._first_token is None:
            self._computed = 0

    # ---------------------------------------------------------------------------------------------------------------- end
    def fail(self, failure: Failure) -> None:
        """The exception that ends it."""
        self._failure = failure

    def deliver(self, output: Any, at: int) -> bool:
        """One of its sequences is complete, or has failed; true if that was the last one."""
        self._outputs[output.request_id] = output
        if output.error is not None:
            self.end(at, self._failure or Failure("_OTHER", str(output.error), ""))
        elif len(self._outputs) >= self.expected:
            self.end(at)
        return self.finished

    def end(self, at: int, failure: Failure | None = None, *, unseen: bool = False) -> None:
        """End the request; once only.

        Args:
            at: when.
            failure: what ended it.
            unseen: whether it goes on and is not observed any more.
        """
        if self.finished:
            return
        self.finished = True
        end = RequestEnd(self.epoch(at), failure, {})
        try:
            with contain("end of a batched request"):
                end = self._described(at, failure, unseen=unseen)
            with contain("hand-over of detail"):
                self._add_phases(at, failure)
                self.hand_over()
        finally:
            self.end_span(end)

    def _sequences(self) -> list[list[int]]:
        return [self._outputs[key].generated_tokens for key in self.names if key in self._outputs]

    def _described(self, at: int, failure: Failure | None, *, unseen: bool) -> RequestEnd:
        sequences = self._sequences()
        complete = failure is None and not unseen
        reasons = [semconv.FINISH_STOP if row and row[-1] in self._ends else semconv.FINISH_LENGTH for row in sequences]
        prompts, replies = self._content(sequences, reasons) if complete else ((), ())
        cached = self._cached()
        steps = self._chunks + self._decoded
        outcome = Outcome(
            failure=failure,
            input_tokens=None if self._prompt is None else [self._prompt],
            output_tokens=[len(row) for row in sequences] if complete else None,
            finish_reasons=reasons if complete else None,
            produced=None if complete else max(sum(map(len, sequences)), len(self._token_times)),
            rows=1,
            returned=self.expected,
            reused_tokens=cached or None,
            tokens_of_first_row=self.expected == 1,
            unseen_steps=None,
            step_rows=self._rows / steps if steps else None,
            sequences=sequences if complete else (),
            attributes=self._attributes(),
            modality="text" if self.owner.text_only else "unknown",
            output_modality="text",
            cached_split={"text": cached} if cached and self.owner.text_only else {},
            input_messages=prompts,
            output_messages=replies,
        )
        end = describe_end(outcome, self._measured(at, unseen=unseen))
        found = dict(end.attributes)
        if self._scheduled is not None and self._first_token is not None and self._computed:
            # Not the time in the queue.
            found[semconv.PREFILL_TOKENS_PER_SECOND] = self._computed / max(1e-9, (self._first_token - self._scheduled) / 1e9)
        queued = (self._scheduled - self.start) / 1e9 if self._scheduled is not None else None
        return replace(end, attributes=found, time_in_queue=queued, preemptions=self._preemptions)

    def _cached(self) -> int:
        """Tokens of the prompt that a shared prefix in the cache has spared; 0 where that is not known."""
        if self._first_token is None or self._prompt is None or self._preemptions:
            return 0
        return max(0, self._prompt - self._computed)

    def _attributes(self) -> dict[str, AttributeValue]:
        found = dict(self._configuration)
        if self._scheduled is not None:
            found[semconv.TIME_IN_QUEUE] = (self._scheduled - self.start) / 1e9
            found[semconv.PREFILL_CHUNKS] = self._chunks
            found[semconv.DECODE_STEPS] = self._decoded
        if self._preemptions:
            found[semconv.PREEMPTIONS] = self._preemptions
        if self._warmup:
            found[semconv.WARMUP] = True
        return found

    def _measured(self, at: int, *, unseen: bool) -> Measured:
        owner, settings = self.owner, self.owner.settings
        unobserved = ["modules: continuous batching"] if owner.engine.expected else []
        unobserved += ["logits: continuous batching"] if settings.logits else []
        unobserved += ["steps: uninstrumented during the call"] if unseen else []
        return Measured(
            start=self.start,
            end=at,
            offset=self.offset,
            first_token=self._first_token,
            token_times=self._token_times,
            token_counts=(),
            step_seconds={},
            logprobs=(),
            entropies=(),
            top1_probabilities=(),
            nonfinite={},
            attributes={},
            step_rows=None,
            joules=None,
            unobserved=unobserved if self.recording else (),
            dropped=0,
            overhead=self.overhead,
            arrays=self.recording and settings.token_arrays,
            content=owner.ids_on_spans,
            decode=owner.decode_token if owner.ids_on_spans and owner.tokenizer is not None else None,
        )

    def _content(self, sequences: Sequence[Sequence[int]], reasons: Sequence[str]) -> tuple[Sequence[Message], Sequence[Message]]:
        owner = self.owner
        if not owner.content or owner.tokenizer is None or self.request_id not in self._outputs:
            return (), ()
        limit, prompt = owner.settings.max_content_chars, _Ids(self._outputs[self.request_id].prompt_ids)
        inputs = messages.chat_messages(self._chat, max_chars=limit) if self._chat is not None else []
        return (
            inputs or messages.input_messages(owner.tokenizer, prompt, None, max_chars=limit),
            messages.output_messages(owner.tokenizer, [list(row) for row in sequences], list(reasons), max_chars=limit),
        )

    def _add_phases(self, at: int, failure: Failure | None) -> None:
        if not self.recording or self._scheduled is None:
            return
        kind = None if failure is None else failure.type
        first = self._first_token
        prefill = at if first is None else min(first, at)
        start = self.epoch(min(self._scheduled, prefill))
        key = PhaseKey(semconv.SPAN_PREFILL, self.new_stage())
        self.pending.append(Phase(key, start, self.epoch(prefill), kind if first is None else None, {}))
        if first is not None and self._decoded:
            key = PhaseKey(semconv.SPAN_DECODE, self.new_stage())
            self.pending.append(Phase(key, self.epoch(prefill), self.epoch(at), kind, {}))


def _configuration(config: Any) -> dict[str, AttributeValue]:
    """What the generation config of the loop says about every request in it."""
    sampled = bool(read_attribute(config, "do_sample", False))
    found: dict[str, AttributeValue] = {semconv.DO_SAMPLE: sampled, semconv.NUM_BEAMS: 1, semconv.MODEL_CACHE: "paged"}
    rows: tuple[tuple[str, str, type], ...] = (
        (semconv.REQUEST_TEMPERATURE, "temperature", float),
        (semconv.REQUEST_TOP_P, "top_p", float),
        (semconv.REQUEST_TOP_K, "top_k", int),
    )
    for key, name, kind in rows if sampled else ():
        value = read_attribute(config, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[key] = kind(value)
    penalty = read_attribute(config, "repetition_penalty")
    if isinstance(penalty, int | float) and penalty != 1:
        found[semconv.REPETITION_PENALTY] = float(penalty)
    return found


def start_request(owner: Owner, config: Any, chat: Sequence[Any] | None, given: Mapping[str, Any]) -> BatchedRequest | None:
    """Begin a request on the thread of its caller, or ``None`` where telemetry stays out.

    Args:
        owner: instrumentation of the model.
        config: the generation config of the loop.
        chat: messages that the prompt was made of; ``None`` if it is no chat, or if that is not known.
        given: keyword arguments of the caller.
    """
    compiling.listen()
    facts: dict[str, AttributeValue] = {}
    if isinstance(given.get("request_id"), str):
        facts[semconv.RESPONSE_ID] = given["request_id"]

    def made(**options: Any) -> BatchedRequest:
        return BatchedRequest(owner, config, chat if owner.content else None, **options)

    operation = owner.settings.operation or (semconv.OPERATION_TEXT_COMPLETION if chat is None else semconv.OPERATION_CHAT)
    request = open_call(KIND, owner, made, operation=operation, facts=facts, attached=False)
    if request is not None:
        request.overhead = perf_counter_ns() - request.start
    return request
