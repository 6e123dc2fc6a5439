"""Checks of single settings: each returns the value that counts, or raises an error with the allowed values.

Texts are taken wherever they can be read, because that is all an environment variable can be.
"""

from __future__ import annotations

import logging
import re
import reprlib
import signal
from collections.abc import Callable, Mapping
from typing import Any

from inferspan.text.lists import entries, pairs, whole_number

__all__ = [
    "GPU_METRICS",
    "HOST_METRICS",
    "KEEP_WORDS",
    "MODEL_STAGES",
    "MODULE_GROUPS",
    "PIPELINE_STAGES",
    "SettingsError",
    "boolean",
    "brief",
    "check_window",
    "choice",
    "fail",
    "integer",
    "keep",
    "modules",
    "names",
    "number",
    "patterns",
    "shown",
    "signal_name",
    "some_of",
    "stages",
    "tags",
    "text",
    "thresholds",
    "warn_once",
    "warned",
    "without_secrets",
]

_log = logging.getLogger("inferspan")
warned: set[str] = set()
"""Texts of the warnings that ``warn_once`` has logged."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100

_STAGE = re.compile(r"[A-Za-z_][\w.\- ]{0,62}")
MODEL_STAGES = ("vision_encode", "audio_encode", "fusion")
"""Stages that are found by the structure of a model."""
PIPELINE_STAGES = ("text_encode", "vae_encode", "vae_decode", "vocode")
"""Further stages of pipelines, beside the denoising, which always has a span."""
_SPANS = frozenset({"prefill", "decode", "prefill_step", "decode_step", "forward"})
"""Names of other spans."""
_SECRETS = re.compile(r"""(?:(?<=//)[^\s'"<>]*|[^\s'"<>/]+:(?!//)[^\s'"<>]*)@|(?<=\?)[^\s'"<>)]+""")
"""User and password of an address, and its query: services take keys in both."""

MODULE_WORDS = ("layers", "all", "none")
MODULE_GROUPS = {
    "group:vision": ("vision", "visual", "image", "patch"),
    "group:audio": ("audio", "speech", "mel", "acoustic"),
    "group:fusion": ("fusion", "multimodal", "projector", "connector", "merger"),
    "group:language": ("language_model", "lm_head", "embed", "transformer", "layers"),
}
"""Modules by words that their paths hold, in any case."""
KEEP_WORDS = ("slow", "errors", "nonfinite", "findings", "unhealthy", "marked")
"""Requests whose detail becomes spans, where it is not that of all of them."""

GPU_METRICS = ("memory", "utilization", "temperature", "power", "energy", "clocks", "throttling", "fan", "io", "errors", "units", "xid",
               "state")  # fmt: skip
HOST_METRICS = ("cpu", "memory", "process", "io", "gc")
"""Groups of readings of the machine; ``samplers/groups.py`` says which metrics each has."""

THRESHOLDS = {
    "confidence": (0.0, 1.0),
    "repetition_recent": (0.0, 1.0), "repetition_4gram": (0.0, 1.0),
    "loop_tokens": (1.0, 1e9), "logit_spread": (0.0, 1e9),
    "entropy": (0.0, 1e9), "collapse_tokens": (1.0, 1e9),
}
"""Thresholds of findings, each with its least and its largest value."""


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and what is allowed."""


def fail(name: str, value: object, allowed: str) -> SettingsError:
    """The error for a value of a setting; ``allowed`` says what to use instead."""
    return SettingsError(f"inferspan setting {name!r} cannot be {brief(value)}: {allowed}")


def without_secrets(text: str) -> str:
    """A text in which no address has a user, a password or a query."""
    return _SECRETS.sub("", text)


def brief(value: object) -> str:
    """The ``repr`` of any value, with at most some hundred characters of each text and no secrets of addresses; never raises."""
    try:
        return without_secrets(_SHORT.repr(value))
    except Exception:  # an integer of more than 4,300 digits, a __repr__ of the program's
        return f"<{type(value).__name__}>"


def check_window(steps: object, cpu_ops: object) -> None:
    """Check the arguments of ``handle.profile()``."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= 1000:
        raise SettingsError(f"handle.profile() cannot take steps={brief(steps)}: use a whole number from 1 to 1000")
    if not (cpu_ops is None or isinstance(cpu_ops, bool)):
        raise SettingsError(f"handle.profile() cannot take cpu_ops={brief(cpu_ops)}: use True, False or None")


def shown(raw: str) -> str:
    """The value of an environment variable as it may stand in a log line: cut, without secrets of addresses and unwritable characters."""
    raw = without_secrets(raw)
    cut = raw if len(raw) <= 80 else f"{raw[:60]}... ({len(raw)} characters)"
    return cut.encode("utf-8", "backslashreplace").decode("utf-8")


def warn_once(text: str, *args: object) -> None:
    """Log a warning about the environment, unless the same one has been logged by this process."""
    message = text % args
    if message not in warned:
        warned.add(message)
        _log.warning("%s", message)


def boolean(name: str, value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        return value.strip().lower() in ("true", "1", "yes", "on")
    raise fail(name, value, "use true or false")


def integer(low: int, high: int) -> Callable[[str, object], int]:
    """A check for whole numbers from ``low`` to ``high``."""

    def check(name: str, value: object) -> int:
        allowed = f"use a whole number from {low} to {high}"
        if isinstance(value, str):
            try:
                value = int(value.strip())
            except ValueError:
                raise fail(name, value, allowed) from None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise fail(name, value, allowed)
        return value

    return check


def number(low: float, high: float) -> Callable[[str, object], float]:
    """A check for numbers from ``low`` to ``high``; NaN is none of them."""

    def check(name: str, value: object) -> float:
        allowed = f"use a number from {low:g} to {high:g}"
        if isinstance(value, str):
            try:
                value = float(value.strip())
            except ValueError:
                raise fail(name, value, allowed) from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise fail(name, value, allowed)
        return float(value)

    return check


def choice(*words: str, upper: bool = False) -> Callable[[str, object], str]:
    """A check for one of some words, in upper or lower case."""

    def check(name: str, value: object) -> str:
        if isinstance(value, str):
            word = value.strip().upper() if upper else value.strip().lower()
            if word in words:
                return word
        raise fail(name, value, f"use one of {', '.join(words)}")

    return check


def text(name: str, value: object) -> str:
    """A text that is not empty."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise fail(name, value, "use a text that is not empty")


def signal_name(name: str, value: object) -> str:
    """The name of a signal that means nothing else to the program, to Python or to the system."""
    there = [word for word in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGBREAK") if hasattr(signal, word)]
    word = value.strip().upper() if isinstance(value, str) else ""
    if word in there:
        return word
    raise fail(name, value, f"use one of {', '.join(there)}" if there else "this platform has no signal for it")


PLACES = r"\{(rank|local_rank|world_size|pid|host)\}"
"""What ``ranks.filled`` replaces in a path."""


def modules(name: str, value: object) -> str | tuple[Any, ...]:
    """One of ``MODULE_WORDS``, or name patterns and ``MODULE_GROUPS``."""
    allowed = 'use "layers", "all", "none" or a list of name patterns and groups such as ["model.layers.*.mlp", "group:vision"]'
    if isinstance(value, str):
        word = value.strip()
        if word in MODULE_WORDS:
            return word
        parts = [part.strip() for part in word.split(",")]
        # A single bare word is far more often a misspelt keyword than the name of a top-level module.
        if word.startswith("re:"):  # it may hold commas
            return _known_groups(name, value, [word])
        if word and all(parts) and (word.startswith("group:") or any(sign in word for sign in "*?[.,")):
            return _known_groups(name, value, parts)
        raise fail(name, value, allowed)
    if callable(value):
        value = [value]
    parts = list(entries(value) or ())
    if parts and all(part.strip() if isinstance(part, str) else callable(part) for part in parts):
        return _known_groups(name, value, [part.strip() if isinstance(part, str) else part for part in parts])
    raise fail(name, value, allowed)


def memory(name: str, value: object) -> str | tuple[Any, ...]:
    """``steps``, or what ``modules`` takes."""
    return "steps" if isinstance(value, str) and value.strip() == "steps" else modules(name, value)


def _known_groups(name: str, value: object, parts: list[Any]) -> tuple[Any, ...]:
    for part in parts:
        if not isinstance(part, str):
            continue
        if part.startswith("group:") and part not in MODULE_GROUPS:
            raise fail(name, value, f"{part!r} is no group; those are {', '.join(MODULE_GROUPS)}")
        if part.startswith("re:"):
            try:
                re.compile(part[3:])
            except re.error as error:
                raise fail(name, value, f"{part!r} is no regular expression: {error}") from None
    return tuple(parts)


def _stage_pair(part: object) -> tuple[object, object]:
    """A name with its patterns; pairs of them are what ``stages`` returns."""
    if isinstance(part, str):
        return part, ()
    pair = entries(part)
    return (pair[0], pair[1]) if pair is not None and len(pair) == 2 else (None, ())


def stages(name: str, value: object) -> str | tuple[tuple[str, tuple[str, ...]], ...]:
    """``auto``, or names of stages, each with patterns of module paths; with none for those that are found by structure."""
    words = ", ".join(MODEL_STAGES + PIPELINE_STAGES)
    allowed = f'use "auto", "none", some of {words}, or names with patterns of modules such as {{"vision_encode": "model.vision_tower"}}'
    if isinstance(value, str):
        if value.strip() in ("auto", "none"):
            return "auto" if value.strip() == "auto" else ()
        value = [tuple(part.split("=", 1)) if "=" in part else part for part in value.split(",")]
    given_pairs: list[tuple[object, object]]
    if isinstance(value, Mapping):
        given_pairs = [*value.items()]
    elif (parts := entries(value)) is not None:
        given_pairs = [_stage_pair(part) for part in parts]
    else:
        raise fail(name, value, allowed)
    found: dict[str, tuple[str, ...]] = {}
    for stage, given in given_pairs:
        patterns = (given,) if isinstance(given, str) else entries(given)
        if not isinstance(stage, str) or not _STAGE.fullmatch(stage.strip()) or stage.strip() in _SPANS:
            raise fail(name, value, allowed)
        if patterns is None or not all(isinstance(one, str) and one.strip() for one in patterns):
            raise fail(name, value, allowed)
        if not patterns and stage.strip() not in MODEL_STAGES + PIPELINE_STAGES:
            raise fail(name, value, allowed)
        found[stage.strip()] = (*found.get(stage.strip(), ()), *(one.strip() for one in patterns))
    return tuple(found.items())


def attention(name: str, value: object) -> str | tuple[Any, ...]:
    """As ``modules``, or true for all layers and false for none."""
    # Only of these can it be asked what they equal.
    word = str(value).strip().lower() if isinstance(value, str | bool) else ""
    return "none" if word == "false" else "all" if word in ("true", "layers") else modules(name, value)


def heads(name: str, value: object) -> tuple[int, ...]:
    """Numbers of heads, from 0."""
    numbers = [whole_number(part, 1_000_000) for part in entries(value) or ()]
    if numbers and None not in numbers:
        return tuple(dict.fromkeys(number for number in numbers if number is not None))
    raise fail(name, value, "use a list of numbers of heads such as [0, 3]")


def names(name: str, value: object) -> tuple[str, ...]:
    """Names of methods, perhaps none."""
    parts = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else entries(value)
    if parts is not None and all(isinstance(part, str) and part.strip().isidentifier() for part in parts):
        return tuple(dict.fromkeys(part.strip() for part in parts))
    raise fail(name, value, 'use a list of names of methods such as ["encode", "decode"]')


def patterns(name: str, value: object) -> tuple[str, ...]:
    """Patterns of class names or names of models, perhaps none."""
    parts = entries(value)
    if parts is not None and all(isinstance(part, str) for part in parts):
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    raise fail(name, value, 'use a list of name patterns such as ["MyNet", "my_app.models.*", "org/model-*"]')


def some_of(*words: str) -> Callable[[str, object], tuple[str, ...]]:
    """A check for one or more of some words, from a list or a text with commas; they come out in their own order."""

    def check(name: str, value: object) -> tuple[str, ...]:
        parts = entries(value)
        if parts and all(isinstance(part, str) for part in parts):
            chosen = {part.strip().lower() for part in parts}
            if chosen <= set(words):
                return tuple(word for word in words if word in chosen)
        raise fail(name, value, f"use one or more of {', '.join(words)}")

    return check


def keep(name: str, value: object) -> str:
    """``always``, or words out of ``KEEP_WORDS`` in their order, joined by commas."""
    allowed = f'use "always", or one or more of {", ".join(KEEP_WORDS)}, such as "slow,errors"'
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false")):
        raise fail(name, value, f"{allowed}; to mark every request with inferspan.keep, use mark=True")
    parts = entries(value)
    if parts and all(isinstance(part, str) for part in parts):
        words = {part.strip().lower() for part in parts}
        if words == {"always"}:
            return "always"
        if words <= set(KEEP_WORDS):
            return ",".join(word for word in KEEP_WORDS if word in words)
    raise fail(name, value, allowed)


def thresholds(name: str, value: object) -> tuple[tuple[str, float], ...]:
    """Numbers by the name of a threshold, from a mapping, pairs, or a text such as ``confidence=0.3,loop_tokens=64``."""
    ranges = ", ".join(f"{key} ({low:g} to {high:g})" for key, (low, high) in THRESHOLDS.items())
    allowed = f'use a mapping such as {{"confidence": 0.3}}, or "confidence=0.3,loop_tokens=64" in the environment, of {ranges}'
    found: list[tuple[str, float]] = []
    try:
        found_pairs = [(key, float(one)) for key, one in tags(name, value)]
    except (SettingsError, ValueError, OverflowError):
        raise fail(name, value, allowed) from None
    for key, number in found_pairs:
        low, high = THRESHOLDS.get(key, (1.0, 0.0))
        if not low <= number <= high:
            raise fail(name, value, allowed)
        found.append((key, number))
    return tuple(found)


def tags(name: str, value: object) -> tuple[tuple[str, str], ...]:
    """Texts by key, from a mapping, pairs, or a text such as ``team=vision,mode=t2v``."""
    allowed = 'use a mapping of texts such as {"mode": "t2v"}, or "mode=t2v,team=vision" in the environment'
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(sign for _, sign, _ in parts):
            raise fail(name, value, allowed)
        value = {key: text for key, _, text in parts}
    try:
        given = pairs(value)
        if all(isinstance(key, str) and key.strip() and isinstance(one, str | int | float) for key, one in given.items()):
            return tuple((key.strip(), str(one).strip()) for key, one in given.items())
    except Exception:  # of an object that only looks like a mapping, or a number that has no text
        pass
    raise fail(name, value, allowed)
