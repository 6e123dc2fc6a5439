"""The shapes of all forward passes of a request, as runs of equal ones, for the figures of the roofline.

In: the passes that are unlike the one before, and the cache. Out: runs. Steps on the short path of the step log look like the one before
and are not told of: their number follows from the numbers of those that are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from inferspan.records import PassFacts, PassRun, PhaseKey

__all__ = ["Mark", "add_mark", "note_cache", "note_output", "run_at", "runs_of"]

MOST_MARKS = 10_000
"""Passes that are unlike the one before; of a request with more there are no figures."""


class Mark(NamedTuple):
    """The first pass of a run: its number, phase, rows, positions of a row, and length."""

    step: int
    phase: PhaseKey
    rows: int
    width: int
    length: int


def add_mark(marks: list[Mark], index: int, phase: PhaseKey, main: Any, length: int | None, cached: int) -> None:
    """Note a pass, unless it continues the run before.

    Args:
        marks: those of the request.
        index: number of the step.
        phase: that it lies in.
        main: the tensor ``[rows, positions, ...]`` that went in, if it is known.
        length: tokens of a row in the cache and in the pass, once the first was chosen.
        cached: positions of a row that were in the cache, until then.
    """
    shape: Any = getattr(main, "shape", ())
    rows, width = (int(shape[0]), int(shape[1])) if len(shape) >= 2 else (0, 0)
    known = cached + width if length is None else length
    last = marks[-1] if marks else None
    if last is not None and (last.phase, last.rows, last.width) == (phase, rows, width) and known - last.length == index - last.step:
        return
    if len(marks) < MOST_MARKS:
        marks.append(Mark(index, phase, rows, width, known))


def run_at(marks: Sequence[Mark], index: int) -> PassRun | None:
    """The step ``index``, the newest one, as a run of its own; ``None`` if its shape is not known."""
    if not marks or not marks[-1].rows:
        return None
    last = marks[-1]
    return PassRun(last.rows, last.width, last.length + index - last.step, first=index == 0)


def runs_of(marks: Sequence[Mark], steps: int, length: int | None) -> dict[PhaseKey, list[PassRun] | None]:
    """The runs of each phase; ``None`` where the shape of a pass is not known.

    Args:
        marks: of the request.
        steps: number of its steps.
        length: tokens of a row at its end, the last chosen one included.
    """
    found: dict[PhaseKey, list[PassRun] | None] = {}
    if len(marks) >= MOST_MARKS:
        return dict.fromkeys({mark.phase for mark in marks})
    # The last run ends where the next pass would begin.
    end = Mark(steps, marks[-1].phase, 0, 0, marks[-1].length if length is None else length) if marks else None
    for mark, following in pairwise([*marks, end] if end is not None else ()):
        count = following.step - mark.step
        runs = found.setdefault(mark.phase, [])
        if not mark.rows or runs is None:
            found[mark.phase] = None
            continue
        # A last pass whose token was not chosen leaves the length as it was.
        grown = following.length - mark.length
        growth = 1 if grown in (count, count - 1) or count == 1 else None
        runs.append(PassRun(mark.rows, mark.width, mark.length, count, growth, first=mark.step == 0))
    return found


def note_cache(facts: PassFacts, cache: Any) -> None:
    """Note what a cache says of the passes that use it, from the shapes of its tensors.

    Args:
        facts: of the request.
        cache: of keys and values, as transformers has them; another object hides what is in it.
    """
    own = getattr(cache, "self_attention_cache", cache)
    layers = getattr(own, "layers", None)
    if layers is None:
        facts.hidden = cache is not None and not isinstance(cache, tuple)
        return
    lengths, room, fixed = [], [], False
    for layer in layers:
        length = _positions(layer)
        if length is not None:
            room.append(length)
            if not getattr(layer, "is_sliding", False):
                lengths.append(length)
        fixed = fixed or type(layer).__name__.startswith("Static")
    # Where all layers have a window the room is the window.
    facts.static = max(lengths or room) if fixed and room else None
    facts.length = max(lengths, default=None)
    if facts.length is None and room:
        seen = [getattr(layer, "cumulative_length", None) for layer in layers]
        facts.length = max((length for length in seen if type(length) is int), default=None)
        facts.unsure = facts.length is None
    encoded = getattr(getattr(cache, "cross_attention_cache", None), "layers", ())
    seen = [length for layer in encoded if (length := _positions(layer)) is not None]
    if seen:
        facts.source = seen[0]


def note_output(facts: PassFacts, output: Any) -> None:
    """Note what the output of a plain forward pass says of its shape."""
    if not isinstance(output, dict):
        return
    # Its own methods may warn of an old name.
    cache = dict.get(output, "cache")
    cache = dict.get(output, "past_key_values") if cache is None else cache
    if cache is not None:
        note_cache(facts, cache)
    shape: Any = getattr(dict.get(output, "encoder_last_hidden_state"), "shape", ())
    if len(shape) == 3:
        facts.source = int(shape[1])


def _positions(layer: Any) -> int | None:
    """Positions for which a layer of a cache has room or keys; ``None`` if it has none yet."""
    shape: Any = getattr(getattr(layer, "keys", None), "shape", ())
    return int(shape[-2]) if len(shape) == 4 else None
