"""A request of several forward passes: one call of the user's that runs a model in batches or chunks.

Each pass is a span of the model itself, and its modules lie inside. The request has sums over its passes; if there was only one, it has the
shapes and the statistics of that one, as a plain forward pass has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inferspan import semconv
from inferspan.attribute_values import shape_attributes
from inferspan.capture.budget import Budget
from inferspan.capture.call import current
from inferspan.capture.compile.state import is_compiling
from inferspan.capture.compile.transforms import is_transforming
from inferspan.capture.compile.watch import compiling
from inferspan.capture.forward import ForwardCall, close_stale, open_forward
from inferspan.capture.logits.heads import Masks
from inferspan.capture.modules.shapes import describe
from inferspan.capture.owner import OpenPass, Owner
from inferspan.capture.recording import run_recorded
from inferspan.capture.root.call import end_call, settle
from inferspan.guard import contain
from inferspan.records import AttributeValue, Failure, ModuleInfo, RequestEnd

from .facts import embedding, logit_facts, look_at_input, nonfinite_of

__all__ = ["SeveralPasses", "Span", "is_inside"]

Facts = Mapping[str, AttributeValue]


def _has_results(output: Any) -> bool:
    try:
        return len(output) > 0
    except TypeError:
        return output is not None


def _add_unobserved(attributes: dict[str, AttributeValue], reason: str) -> None:
    before = attributes.get(semconv.UNOBSERVED)
    attributes[semconv.UNOBSERVED] = f"{before}; {reason}" if before else reason


class SeveralPasses(ForwardCall):
    """The request; see the module."""

    def __init__(self, owner: Owner, opened: OpenPass, result_facts: Callable[[Any], Facts] | None = None, **options: Any) -> None:
        self.passes = 0
        self._result_facts = result_facts
        self._rows: int | None = 0
        self._tokens: int | None = 0
        self._encoded_tokens: int | None = None
        self._truncated: int | None = None
        self._masks: Masks = (None, None)
        self._pass_facts: dict[str, AttributeValue] = {}
        self._nonfinite: dict[tuple[str, str], int] = {}
        self._sharded = False
        self._dimension: int | None = None
        super().__init__(owner, (), opened, budget=Budget(owner.settings.span_budget, steps=False), **options)

    def enter_again(self, info: ModuleInfo, arguments: tuple[Any, ...]) -> None:
        """A pass begins; a model that calls itself within one is a module call, as everywhere."""
        if not self.inner:
            with contain("start of a pass"):
                self._begin_pass(arguments[0], arguments[1] if len(arguments) > 1 else {})
        super().enter_again(info, arguments)

    def _begin_pass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.passes += 1
        given = look_at_input(self.owner, args, kwargs, recording=self.recording, counting=self.counts == "embedded")
        self._rows = None if given.rows is None or self._rows is None else self._rows + given.rows
        self._tokens = None if given.tokens is None or self._tokens is None else self._tokens + given.tokens
        if self.recording:
            self._pass_facts = shape_attributes(given.described, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)
        self._masks = given.masks

    def leave_again(self, info: ModuleInfo, output: Any, now: int, failure: str | None) -> None:
        """A pass has ended."""
        super().leave_again(info, output, now, failure)
        if not self.inner and failure is None:
            with contain("end of a pass"):
                self._end_pass(output)
        self._masks = (None, None)

    def _end_pass(self, output: Any) -> None:
        outputs = describe(output)
        embedded = embedding(output, outputs) if self.counts == "embedded" else ()
        if embedded and embedded[0][0]:
            self._dimension = int(embedded[0][0][-1])
        if self.recording:
            statistics, sharded = logit_facts(output, self.owner, self._masks) if self.settings.logits else ({}, False)
            self._sharded = self._sharded or sharded
            for key, count in nonfinite_of(statistics).items():
                self._nonfinite[key] = self._nonfinite.get(key, 0) + count
            self._pass_facts |= {**shape_attributes(outputs, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES), **statistics}

    def note_encoded(self, encoded: Any, options: Mapping[str, Any]) -> None:
        """A tokenizer has made inputs of this request: count their tokens, and the inputs that it has cut off."""
        if options.get("return_overflowing_tokens"):
            return
        encodings = getattr(encoded, "encodings", None)
        if not isinstance(encodings, list) or not encodings:
            return
        self._truncated = (self._truncated or 0) + sum(bool(one.overflowing) for one in encodings)
        self._encoded_tokens = (self._encoded_tokens or 0) + sum(sum(one.attention_mask) for one in encodings)

    def _describe_end(self, output: Any, failure: Failure | None, now: int) -> RequestEnd:
        self.rows = self._rows if self.passes else None
        if self.counts == "embedded" and self.passes:
            self.input_tokens = self._encoded_tokens if self._tokens is None else self._tokens
        end = super()._describe_end(None, failure, now)
        attributes: dict[str, AttributeValue] = {**(self._pass_facts if self.passes == 1 else {}), **end.attributes}
        if self.passes:
            attributes[semconv.FORWARD_PASSES] = self.passes
        elif failure is None and _has_results(output):
            _add_unobserved(attributes, "passes: none seen")
        if self._truncated is not None:
            attributes[semconv.INPUT_TRUNCATED] = self._truncated
        if self._dimension is not None:
            attributes[semconv.EMBEDDINGS_DIMENSION] = self._dimension
        if self._sharded:
            _add_unobserved(attributes, "logits: sharded")
        if self._nonfinite:
            attributes[semconv.NONFINITE] = True
            self.note_nonfinite()
        if self._result_facts is not None and failure is None:
            with contain("result of a call"):
                attributes |= self._result_facts(output)
        return replace(end, attributes=attributes, nonfinite={**end.nonfinite, **self._nonfinite})


def is_inside(owner: Owner) -> bool:
    """Whether a request of this model runs on the thread already, so that what is called is a part of it."""
    call = current.call
    while call is not None:
        if getattr(call, "owner", None) is owner:
            return True
        call = call.outer
    return False


class Span:
    """Opens and ends one request of several passes, in one function around the call.

    Args:
        owner: the instrumentation of the model.
        operation: in the conventions; ``None`` if it is none of theirs.
        facts: attributes of the request span from its start on.
        result_facts: gives attributes from what the call returned.
    """

    __slots__ = ("_call", "_facts", "_opened", "_operation", "_owner", "_result_facts")

    def __init__(
        self, owner: Owner, operation: str | None, facts: Facts, result_facts: Callable[[Any], Facts] | None = None
    ) -> None:
        self._owner, self._operation, self._facts, self._result_facts = owner, operation, facts, result_facts
        self._opened: OpenPass | None = None
        self._call: ForwardCall | None = None

    def open(self) -> None:
        """Begin the request, unless telemetry stays out; contains its errors. Not twice."""
        if self._opened is not None or is_compiling():
            return
        with contain("start of a request"):
            compiling.listen()
            close_stale(None)
            owner = self._owner
            if is_transforming() or not owner.is_open or is_inside(owner):
                return
            self._opened = opened = OpenPass(threading.get_ident(), hooked=False)

            def made(**options: Any) -> ForwardCall:
                return SeveralPasses(owner, opened, self._result_facts, **options)

            self._call = open_forward(owner, opened, made, operation=self._operation, facts=self._facts)
            if self._call is not None:
                self._call.scope.attach()

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, at_once: bool = True) -> Any:
        """Call the function; the request ends with it.

        Args:
            function: what to call.
            args: its arguments by position.
            kwargs: its arguments by name.
            at_once: whether the request begins with the call; if not, ``open`` is called in it, or not at all.
        """
        try:
            return run_recorded(self, function, args, kwargs, first=self.open if at_once else None)
        finally:
            opened = self._opened
            if opened is not None and opened.registered is not None:
                settle(opened)

    def finish(self, result: Any) -> None:
        """End the request, if it has begun: the call has returned."""
        self._end(result, None)

    def fail(self, error: BaseException) -> None:
        """End the request, if it has begun, with the exception that passes through."""
        self._end(None, error)

    def _end(self, output: Any, error: BaseException | None) -> None:
        call, self._call = self._call, None
        if call is not None and self._opened is not None:
            end_call(call, self._opened, output, error)
