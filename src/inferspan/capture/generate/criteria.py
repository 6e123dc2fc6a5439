"""Stopping criteria that report each decision, and otherwise are the user's list.

The list is replaced by one of the same items that also passes the chosen tokens and the decision to a callback. It adds no criterion, no
tensor operation and no read, and copies and pickles of it are plain lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from inferspan import semconv
from inferspan.capture.stopping.criterion import stops_of
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


_classes: dict[type, type] = {}


def _observed_class(plain: type) -> type:
    """A subclass of the list class at hand, made once: transformers is not imported for it."""
    if plain in _classes:
        return _classes[plain]

    class Observed(plain):  # type: ignore[misc]
        _inferspan: tuple[Chosen, Loop] | None = None

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            watched = self._inferspan
            own: Any = None
            limit = watched[1].max_length if watched is not None and watched[1].custom else None
            if limit is not None and isinstance(input_ids, Tensor) and input_ids.shape[1] >= limit:
                # Apart, because at the last allowed token the limit ends every row.
                own, done = self._apart(input_ids, scores, kwargs)
            else:
                done = plain.__call__(self, input_ids, scores, **kwargs)
            if watched is not None:
                # Not ``contain``, for the reason that ``prepare_inputs`` has.
                try:
                    watched[0](watched[1], input_ids, done if own is None else own)
                except Exception as error:
                    report("stopping criteria", error)
            return done

        def _apart(self, input_ids: Any, scores: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
            """The decision of all criteria but the limits of length, and that of all."""
            limits, others = plain(), plain()
            others.__dict__.update(self.__dict__)
            others.__dict__.pop("_inferspan", None)
            for one in self:
                (limits if type(one).__name__ == "MaxLengthCriteria" and _is_known(one) else others).append(one)
            own = plain.__call__(others, input_ids, scores, **kwargs)
            if not limits:
                return own, own
            return own, own | plain.__call__(limits, input_ids, scores, **kwargs)

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
