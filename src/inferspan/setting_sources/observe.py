"""Kinds of figures that one switch turns on, and the settings that each of them stands for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from inferspan.setting_checks import brief, fail
from inferspan.text.lists import entries

__all__ = ["KINDS", "kinds", "known_kinds", "meant_by"]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "activation": {"output_stats": True},
    "memory": {"memory": "layers"},
    "attention": {"attention": "all"},
    "debug": {"numerics": "all"},
}
"""By name, the settings of a kind. A kind with a setting that this version does not have is not known."""


def known_kinds(settings: Collection[str]) -> list[str]:
    """Names of the kinds of which this version has the settings."""
    return [kind for kind, stands_for in KINDS.items() if all(setting in settings for setting in stands_for)]


def kinds(name: str, value: object, settings: Collection[str]) -> tuple[str, ...]:
    """Kinds in their own order, perhaps none, from a list or a text with commas.

    Args:
        name: of the setting.
        value: what was given.
        settings: names of all settings.

    Raises:
        SettingsError: one is unknown.
    """
    known = known_kinds(settings)
    parts = entries(value)
    allowed = f"use some of {', '.join(known)}"
    if parts is None or not all(isinstance(part, str) for part in parts):
        raise fail(name, value, allowed)
    chosen = {part.strip().lower() for part in parts if part.strip()}
    unknown = sorted(chosen.difference(known))
    if unknown:
        raise fail(name, value, f"{', '.join(map(brief, unknown))} is unknown, {allowed}")
    return tuple(kind for kind in known if kind in chosen)


def meant_by(chosen: Sequence[str]) -> dict[str, Any]:
    """The settings that some kinds stand for."""
    return {setting: value for kind in chosen for setting, value in KINDS[kind].items()}
