"""Stopping criteria that report each decision, and otherwise are the user's list.

The list is replaced by one of the same items that also passes the chosen tokens and the decision to a callback. It adds no criterion, no
tensor operation and no read, and copies and pickles of it are plain lists.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from inferspan import semconv
from inferspan.capture.stopping.criterion import stops_of
from inferspan.capture.values.unseen import AS_IT_IS, dispatches, functions, without_modes
from inferspan.guard import report
from inferspan.records import AttributeValue

from .tokens import Generated, Loop

__all__ = ["observe_criteria", "stop_kinds"]

_OF_LENGTH = frozenset({"MaxLengthCriteria", "MaxTimeCriteria", "EosTokenCriteria", "ConfidenceCriteria"})
"""Criteria after which the length of a row can be read from the result."""

Chosen: TypeAlias = Callable[[Loop, Any, Any], None]
"""Called with the loop, its ids ``[rows, width]`` and the decision for each row."""



def _is_known(criterion: Any) -> bool:
    """Whether the criterion is one of transformers' after which the result alone tells the length of a row."""
    return type(criterion).__name__ in _OF_LENGTH and type(criterion).__module__.startswith("transformers.")


def _is_limit(criterion: Any) -> bool:
    return type(criterion).__name__ == "MaxLengthCriteria" and _is_known(criterion)


_classes: dict[type, type] = {}


def _observed_class(plain: type) -> type:
    """A subclass of the list class at hand, made once: transformers is not imported for it."""
    if plain in _classes:
        return _classes[plain]

    # The list of a subclass may look at its items otherwise.
    asked_in_turn = plain.__call__.__module__.startswith("transformers.")

    class Observed(plain):  # type: ignore[misc]
        _inferspan: tuple[Chosen, Loop] | None = None

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            watched = self._inferspan
            limit = watched[1].max_length if watched is not None and watched[1].custom and asked_in_turn else None
            answers: list[tuple[Any, Any]] | None = None
            if limit is not None and isinstance(input_ids, torch.Tensor) and input_ids.shape[1] >= limit:
                # At the last allowed token the limit ends every row.
                answers, done = self._noting(input_ids, scores, kwargs)
            else:
                done = plain.__call__(self, input_ids, scores, **kwargs)
            if watched is not None:
                # Not ``contain``, for the reason that ``prepare_inputs`` has.
                try:
                    with without_modes() if functions() or dispatches() else AS_IT_IS:
                        if answers is not None:
                            others = [answer for criterion, answer in answers if not _is_limit(criterion)]
                            watched[0](watched[1], input_ids, functools.reduce(operator.or_, others, torch.zeros_like(done)))
                        else:
                            watched[0](watched[1], input_ids, done)
                except Exception as error:
                    report("stopping criteria", error)
            return done

        def _noting(self, input_ids: Any, scores: Any, kwargs: dict[str, Any]) -> tuple[list[tuple[Any, Any]], Any]:
            """Each criterion with its answer, and the decision of all: made by the same code, from the same calls in the same order."""
            answers: list[tuple[Any, Any]] = []

            def noted(criterion: Any) -> Any:
                def ask(*args: Any, **more: Any) -> Any:
                    answer = criterion(*args, **more)
                    answers.append((criterion, answer))
                    return answer

                return ask

            asked = plain(map(noted, self))
            asked.__dict__.update(self.__dict__)
            asked.__dict__.pop("_inferspan", None)
            return answers, plain.__call__(asked, input_ids, scores, **kwargs)

        def __reduce__(self) -> Any:
            return plain, (list(self),)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            import copy

            return plain(copy.deepcopy(list(self), memo))

    Observed.__name__, Observed.__qualname__, Observed.__module__ = plain.__name__, plain.__qualname__, plain.__module__
    _classes[plain] = Observed
    return Observed


def observe_criteria(criteria: Any, loop: Loop, chosen: Chosen) -> Any:
    """The same criteria, which call ``chosen`` after each decision; anything that is no criteria list comes back as it is."""
    module = sys.modules.get("transformers.generation.stopping_criteria")
    known = getattr(module, "StoppingCriteriaList", None)
    if known is None or not isinstance(criteria, known):
        return criteria
    loop.custom = any(not _is_known(one) for one in criteria)
    observed = _observed_class(type(criteria))(criteria)
    observed.__dict__.update(criteria.__dict__)
    loop.stops = stops_of(criteria)
    observed._inferspan = (chosen, loop)
    return observed


def stop_kinds(loops: Sequence[Loop], generated: Generated | None) -> dict[str, AttributeValue]:
    """By what ``inferspan.stop_on`` has ended each sequence, an empty text for one that it has not; nothing if it has ended none."""
    if generated is None or len(loops) != 1 or loops[0].beams > 1:
        return {}
    found = [""] * len(generated.counts)
    for stop in loops[0].stops:
        found = [old or new for old, new in zip(found, stop.reasons(generated.counts), strict=True)]
    return {semconv.STOP_KINDS: found[:1024]} if any(found) else {}
