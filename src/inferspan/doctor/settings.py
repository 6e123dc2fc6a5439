"""Settings in force, each with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from inferspan.doctor.findings import Finding, Look, note, problem
from inferspan.doctor.scripts import Script
from inferspan.setting_checks import brief, without_secrets
from inferspan.setting_sources.file import FILE_VARIABLE
from inferspan.settings import (
    PRESET_VARIABLE,
    STABILITY_VARIABLE,
    Settings,
    SettingsError,
    environment_name,
)  # fmt: skip

__all__ = ["effective", "given_by", "in_force", "settings", "source_of", "value_text"]


def source_of(resolved: Settings, name: str, environ: Mapping[str, str], given: Mapping[str, Any]) -> str:
    """Where the value of a setting comes from, in words: an argument, a variable, a file, a preset, or the default."""
    if name in given:
        return "argument"
    variable = resolved.source(name)
    if variable is None:
        return "default"
    if variable == FILE_VARIABLE:
        return f"file {environ.get(FILE_VARIABLE, '').strip()} ({FILE_VARIABLE})"
    if variable == PRESET_VARIABLE:
        return f"preset {environ.get(PRESET_VARIABLE, '').strip()} ({PRESET_VARIABLE})"
    if name == "semconv" and not environ.get(environment_name("semconv"), "").strip():
        return f"environment {STABILITY_VARIABLE}"
    return f"environment {variable}"


def effective(
    environ: Mapping[str, str], given: Mapping[str, Any], *, preset: str | None = None, config_file: str | None = None
) -> Iterator[tuple[str, Any, str]]:
    """Name, value and source of each setting.

    Raises:
        SettingsError: an argument is wrong.
    """
    resolved = Settings.resolve(given, preset=preset, config_file=config_file, environ=environ)
    for item in fields(Settings):
        source = source_of(resolved, item.name, environ, given)
        if source == "default" and getattr(resolved, item.name) != item.default:
            source = f"file {config_file}" if config_file else f"preset {preset}" if preset else "follows from other settings"
        yield item.name, getattr(resolved, item.name), source


def value_text(value: object) -> str:
    """A value as it may be written in the environment."""
    if value is None:
        return "not set"
    if isinstance(value, tuple | list):
        parts = [
            "=".join(value_text(each) for each in part if each != ()) if isinstance(part, tuple | list) else str(part) for part in value
        ]
        return ",".join(parts) or "none"
    return without_secrets(str(value))


def given_by(look: Look) -> Mapping[str, Any]:
    """Settings that the program gives as arguments, as far as its text tells their values and these can be used."""
    script: Script | None = look.shared.get("script")
    if script is None:
        return {}
    try:
        Settings.resolve(script.constants, environ=look.environ)
    except SettingsError:
        return {}
    return script.constants


def in_force(look: Look) -> Settings:
    """The settings of the program."""
    return Settings.resolve(given_by(look), environ=look.environ)


def settings(look: Look) -> Iterator[Finding]:
    """Those that are not at their default."""
    script: Script | None = look.shared.get("script")
    arguments = script.arguments if script is not None else {}
    given = given_by(look)
    if script is not None and script.constants and not given:
        yield _wrong_argument(script, look)
    found = bool(arguments)
    for name, value, source in effective(look.environ, given):
        if source == "argument":
            yield note(name, value_text(value), f"argument of {arguments[name]}")
        elif name in arguments:
            yield note(name, "known when it runs", f"argument of {arguments[name]}")
        elif source != "default":
            found = True
            yield note(name, value_text(value), source)
    if not found:
        yield note("settings", "all at their defaults: inferspan settings lists them")


def _wrong_argument(script: Script, look: Look) -> Finding:
    """The argument for which ``instrument()`` raises."""
    for name, value in script.constants.items():
        try:
            Settings.resolve({name: value}, environ={})
        except SettingsError as error:
            reason = str(error).partition(": ")[2] or str(error)
            return problem(name, f"instrument() refuses {brief(value)}", reason, f"argument of {script.arguments[name]}")
    return problem("settings", f"the arguments in {script.path} contradict each other", "run the program: the error says which")
