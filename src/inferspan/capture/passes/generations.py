"""A request around several ``generate()``: one call of a pipeline that runs its prompts one after the other, or in batches.

Each ``generate()`` is a request of its own inside, with phases and steps, and counts as nested; tokens and reasons of all of them stand on
the outer one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from inferspan.capture import recording
from inferspan.capture.outcome import Outcome
from inferspan.capture.owner import Owner
from inferspan.records import AttributeValue, Failure

__all__ = ["Generations", "summed"]

T = TypeVar("T")


def _joined(parts: Sequence[Sequence[T] | None]) -> list[T] | None:
    """All of them in order; ``None`` if one is not known."""
    known = [part for part in parts if part is not None]
    return [*chain.from_iterable(known)] if known and len(known) == len(parts) else None


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _split(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Sums by modality; empty if one of the requests is not split."""
    return {key: sum(part.get(key, 0) for part in parts) for key in dict.fromkeys(chain(*parts))} if all(parts) else {}


def _same(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else "unknown"


def summed(parts: Sequence[Outcome], failure: Failure | None) -> Outcome:
    """The outcome of a request from those of the requests in it.

    Args:
        parts: in order.
        failure: the exception that ended the outer one.
    """
    if not parts:
        return Outcome(failure=failure, unseen_steps=None)
    rows = [one.rows if one.input_tokens is None else len(one.input_tokens) for one in parts]
    caches = [one.cache_bytes for one in parts if one.cache_bytes is not None]
    return Outcome(
        failure=failure,
        unseen_steps=None,
        input_tokens=_joined([one.input_tokens for one in parts]),
        output_tokens=_joined([one.output_tokens for one in parts]),
        finish_reasons=_joined([one.finish_reasons for one in parts]),
        produced=_sum([one.produced if one.output_tokens is None else sum(one.output_tokens) for one in parts]),
        rows=None if None in rows else _sum(rows),
        returned=parts[0].returned,
        cache_bytes=max(caches, default=None),
        drafted_tokens=_sum([one.drafted_tokens for one in parts]),
        accepted_tokens=_sum([one.accepted_tokens for one in parts]),
        attributes=parts[0].attributes,
        unobserved=[*dict.fromkeys(chain(*(one.unobserved for one in parts)))],
        modality=_same([one.modality for one in parts]),
        output_modality=_same([one.output_modality for one in parts]),
        input_split=_split([one.input_split for one in parts]),
        cached_split=_split([one.cached_split for one in parts]),
        input_messages=[*chain(*(one.input_messages for one in parts))],
        output_messages=[*chain(*(one.output_messages for one in parts))],
        sequences=_joined([one.sequences or None for one in parts]) or (),
        figures=_joined([one.figures or None for one in parts]) or (),
        nonfinite_logits=sum(one.nonfinite_logits for one in parts),
    )


class Generations:
    """Opens and ends one such request, in one function around the call.

    Args:
        owner: the instrumentation of the model.
        operation: in the conventions.
        facts: attributes of the request span from its start on.
    """

    __slots__ = ("_facts", "_operation", "_owner", "_request")

    def __init__(self, owner: Owner, operation: str, facts: Mapping[str, AttributeValue]) -> None:
        self._owner, self._operation = owner, operation
        self._facts: dict[str, Any] = dict(facts)
        self._request: recording.Request | None = None

    def open(self) -> None:
        """Begin the request, unless telemetry stays out. Not twice."""
        if self._request is None:
            request = recording.start("generate", self._owner, operation=self._operation, **self._facts)
            if isinstance(request, recording.Request):
                self._request = request
                request.inside = []

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, at_once: bool = True) -> Any:
        """Call the function; the request ends with it.

        Args:
            function: what to call.
            args: its arguments by position.
            kwargs: its arguments by name.
            at_once: whether the request begins with the call; if not, ``open`` is called in it, or not at all.
        """
        return recording.run_recorded(self, function, args, kwargs, first=self.open if at_once else None)

    def finish(self, result: Any) -> None:
        """End the request, if it has begun: the call has returned."""
        if self._request is not None:
            self._request.finish(summed(self._request.inside or (), None))

    def fail(self, error: BaseException) -> None:
        """End the request, if it has begun, with the exception that passes through; not twice."""
        if self._request is not None and not self._request.ended:
            self._request.finish(summed(self._request.inside or (), self._request.failure_of(error)))
