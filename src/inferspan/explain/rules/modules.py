"""Modules: one that is slower than its equals or than all others, and experts with uneven load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.text.quantities import seconds_text

from ..cause import LIKELY, POSSIBLE, SURE, Cause, Part, shown_by
from ..figures import Figures
from ..modules import Module, Sampled, in_a_row, kind_of
from ..requests import FORWARD, median
from ..spans import number
from ..wording import percent, times

__all__ = ["expert_imbalance", "slow_module"]

_SLOWER = 3.0
"""Times the typical call of equal modules."""
_PART = 0.1
"""Share of sampled steps that the excess must have."""
_ALONE = 0.5
"""Share of sampled steps from which a module without equals is one to look at."""
_FEWEST = 3
_STEADY = 2.0
"""Times the typical call of equal modules that even the faster calls take, if it is the module and not a machine with other work."""
_FEWEST_CALLS = 3
_IMBALANCE = 2.0
_OTHERS_DO_NOT = "Look at what this module does that {} do not: work on the host, another dtype or device, an uncompiled path."


class _Kind(NamedTuple):
    """What a module is compared with, and what follows from that."""

    basis: str
    sure: str
    advice: str


_EQUALS = _Kind("estimated", SURE, _OTHERS_DO_NOT.format("its equals"))
_PLACE = _Kind("estimated", LIKELY, _OTHERS_DO_NOT.format("those of the other layers"))
_PASS = _Kind("at most", LIKELY, "Look at this module first: most of the time of each pass is in it.")
_OWN = _Kind("at most", LIKELY, "Look at the code of this module around the modules that it calls: most of the time of each pass is there.")
_WITH_ALL_INSIDE = frozenset({"all", "layers"})
"""Values of the setting ``modules`` with which all that a module calls is recorded if some of it is, or nearly all."""


class _Slow(NamedTuple):
    """A slow module: ``excess`` are seconds over what it is compared with, in sampled steps."""

    module: Module
    excess: float
    why: str
    kind: _Kind


def slow_module(figures: Figures) -> Iterator[Cause]:
    """Modules whose typical call takes far longer than that of equal ones, or than everything else together; one cause for all phases."""
    found: dict[str, tuple[float, float, _Slow]] = {}
    for sampled in figures.sampled.values():
        if sampled.steps and sampled.seconds > 0:
            for slow in (*_slower(sampled), *_alone(sampled, inside=_inside_is_recorded(figures, sampled))):
                seconds, most, longest = found.get(slow.module.path, (0.0, 0.0, slow))
                cost = slow.excess * sampled.scale
                found[slow.module.path] = (seconds + cost, *((cost, slow) if cost > most else (most, longest)))
    if not found:
        return
    path = max(found, key=lambda one: found[one][0])
    seconds, _, (module, _, why, kind) = found[path]
    others = sorted(((name, one[0]) for name, one in found.items()), key=lambda item: -item[1])
    together = sum(cost for _, cost in others)
    yield Cause(
        rule="slow_module",
        title=f"{path} ({module.type or 'module'}) {why}",
        place=_place(figures, path),
        seconds=together,
        gain=together,
        basis=kind.basis,
        sure=kind.sure if kind in (_PASS, _OWN) or _steady(figures, path) else POSSIBLE,
        figures={
            "module": path, "type": module.type or None, "own_seconds_typical": module.typical.at(0.5), "calls": module.calls,
            "extra_seconds": seconds,
        },
        spans=shown_by([module.longest] if module.longest is not None else []),
        parts=[Part(name, cost) for name, cost in others[:5]],
        advice=kind.advice,
    )  # fmt: skip


def _steady(figures: Figures, path: str) -> bool:
    """Whether the module is slow in nearly all of its calls, of which there are some: bursts of other work on the machine hit a few."""
    for sampled in figures.sampled.values():
        module = sampled.modules.get(path)
        others = [one.typical.at(0.5) or 0.0 for name, one in sampled.modules.items() if name != path and kind_of(name) == kind_of(path)]
        if module is not None and module.calls >= _FEWEST_CALLS and (module.typical.at(0.1) or 0.0) >= _STEADY * median(others) > 0:
            return True
    return False


def _place(figures: Figures, path: str) -> str:
    holding = {name: sampled.modules[path].own * sampled.scale for name, sampled in figures.sampled.items() if path in sampled.modules}
    return max(holding, key=lambda name: holding[name])


def _slower(sampled: Sampled) -> Iterator[_Slow]:
    """Modules slower than their equals: those of the same class and shapes, whose paths differ in indices only."""
    places: dict[tuple[str, tuple[Any, Any]], list[Module]] = {}
    for module in sampled.modules.values():
        places.setdefault((kind_of(module.path), module.shapes), []).append(module)
    for place in places.values():
        for module in place:
            equals = [one for one in place if one.type == module.type]
            # Parts of layers under the same name are of one class, as a rule.
            others = equals if len(equals) >= _FEWEST or in_a_row(module.path) else place
            if len(others) < _FEWEST:
                continue
            usual = median(one.typical.at(0.5) or 0.0 for one in others)
            typical = module.typical.at(0.5) or 0.0
            excess = (typical - usual) * module.calls
            if usual > 0 and typical >= _SLOWER * usual and excess >= _PART * sampled.seconds:
                number = len(others) - 1
                which = f"the {number} equal ones" if others is equals else f"those of {number} other layers, which are of another class"
                why = f"takes {seconds_text(typical)} a call of its own, {times(typical / usual)} as long as {which}"
                yield _Slow(module, excess, why, _EQUALS if others is equals else _PLACE)


def _inside_is_recorded(figures: Figures, sampled: Sampled) -> bool:
    """Whether own time of a module with recorded ones inside is that of its own code, and not of modules that were not recorded."""
    # Steps are recorded whole, single passes as far as the budget has room.
    left_out = sampled.phase == FORWARD and any(number(request.span, semconv.SPANS_DROPPED) for request in figures.requests)
    return figures.settings.get("modules", ("", ""))[0] in _WITH_ALL_INSIDE and not left_out


def _alone(sampled: Sampled, *, inside: bool) -> Iterator[_Slow]:
    """A module without equals that takes most of the time of all steps; with ``inside`` also one around other modules, without them."""
    if len(sampled.modules) < _FEWEST:
        return
    for module in sampled.modules.values():
        call = module.typical.at(0.5) or 0.0
        typical = call * module.calls
        if typical < _ALONE * sampled.seconds:
            continue
        others = [one.typical.at(0.5) or 0.0 for one in _others(module, sampled)]
        # One other is too few to say what is usual, as in a model of two layers, unless they are far apart.
        if len(others) >= _FEWEST - 1 or (others and (in_a_row(module.path) or call < _SLOWER * others[0])):
            continue
        around = _contains(module, sampled)
        if inside or not around:
            share, without = percent(min(1.0, typical / sampled.seconds)), " in code of its own" if around else ""
            why = f"takes {share} of the steps with recorded modules{without}, {seconds_text(typical / module.calls)} a call"
            yield _Slow(module, typical, why, _OWN if around else _PASS)


def _others(module: Module, sampled: Sampled) -> list[Module]:
    """Other modules of the same place in other layers."""
    return [one for one in sampled.modules.values() if one is not module and kind_of(one.path) == kind_of(module.path)]


def _contains(module: Module, sampled: Sampled) -> bool:
    """Whether other recorded modules are inside."""
    return any(path.startswith(f"{module.path}.") for path in sampled.modules)


def expert_imbalance(figures: Figures) -> Iterator[Cause]:
    """Routers that send most tokens to few experts."""
    found = [one for sampled in figures.sampled.values() for one in sampled.imbalances]
    usual = median(value for value, _ in found)
    if len(found) < _FEWEST or usual < _IMBALANCE:
        return
    yield Cause(
        rule="expert_imbalance",
        title=f"the busiest expert gets {times(usual)} the tokens of the mean",
        place=semconv.SPAN_DECODE if semconv.SPAN_DECODE in figures.sampled else next(iter(figures.sampled)),
        seconds=None,
        level="medium",
        figures={"imbalance": usual, "calls": len(found)},
        spans=shown_by(span for value, span in found if value >= usual),
        advice="Batch requests of different kinds together, or place busy experts on several devices.",
    )
