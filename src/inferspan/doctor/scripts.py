"""What the text of a program says about its telemetry, without running it.

In comes the path of a Python file; out come the calls that matter: ``instrument``, ``configure``, providers of its own, and settings given
as constants. What the program does in other files is not seen.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from inferspan.doctor.findings import Finding, Look, note, problem, warning
from inferspan.settings import Settings

__all__ = ["Script", "read_script", "script"]

_LARGEST = 4 << 20
_OURS = ("instrument", "configure", "instrument_loading", "generation", "session")
_PROVIDERS = {"set_tracer_provider": "traces", "set_meter_provider": "metrics", "set_logger_provider": "logs"}
_SETTINGS = frozenset(item.name for item in fields(Settings))


@dataclass
class Script:
    """What a file says."""

    path: str
    calls: dict[str, int] = field(default_factory=dict)
    """Calls of inferspan with the line of the first."""
    providers: dict[str, int] = field(default_factory=dict)
    """Signals for which it sets a provider, with the line."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Settings that are given as arguments, each with file and line."""
    constants: dict[str, Any] = field(default_factory=dict)
    """Values of those that are constants."""
    fault: str = ""


def read_script(path: str) -> Script:
    """Read a file; one that is no Python has a ``fault``."""
    found = Script(path)
    try:
        file = Path(path)
        if file.is_dir():
            file = file / "__main__.py"
        if file.stat().st_size > _LARGEST:
            return found
        tree = ast.parse(file.read_bytes())
    except OSError as error:
        found.fault = error.strerror or str(error)
        return found
    except (SyntaxError, ValueError, RecursionError) as error:
        found.fault = f"it is no Python that this version reads ({type(error).__name__})"
        return found
    names = _names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _look_at(node, found, names)
    return found


def _names(tree: ast.AST) -> dict[str, str]:
    """Names in the file for what it imports of inferspan."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "inferspan":
            found.update({each.asname or each.name: each.name for each in node.names})
        elif isinstance(node, ast.Import):
            found.update({each.asname or each.name: "" for each in node.names if each.name == "inferspan"})
    return found


def _look_at(node: ast.Call, found: Script, names: dict[str, str]) -> None:
    called = node.func
    if isinstance(called, ast.Attribute):
        name = called.attr
        ours = isinstance(called.value, ast.Name) and names.get(called.value.id) == ""
    elif isinstance(called, ast.Name):
        name, ours = names.get(called.id, called.id), bool(names.get(called.id))
    else:
        return
    if name in _PROVIDERS:
        found.providers.setdefault(_PROVIDERS[name], node.lineno)
    if not ours or name not in (*_OURS, "Settings"):
        return
    if name != "Settings":
        found.calls.setdefault(name, node.lineno)
    for keyword in node.keywords:
        if keyword.arg in _SETTINGS:
            found.arguments[keyword.arg] = f"{found.path}:{node.lineno}"
            found.constants.pop(keyword.arg, None)
            with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError):
                found.constants[keyword.arg] = ast.literal_eval(keyword.value)


def script(look: Look) -> Iterator[Finding]:
    """What the program says itself, and whether its models are observed."""
    found: Script | None = look.shared.get("script")
    zero_code = look.shared.get("zero_code", False)
    if found is not None and found.fault:
        yield problem("program", f"{found.path}: {found.fault}", "check the path of the program")
        return
    if look.started_by:
        if zero_code:
            yield note("models", "every model that the program builds and calls is observed", look.started_by)
        else:
            yield problem("models", "inferspan is not loaded by opentelemetry-instrument", _why_not_loaded(look))
    if found is None:
        return
    for name, line in found.calls.items():
        yield note(f"inferspan.{name}()", f"{found.path}:{line}")
    for signal, line in found.providers.items():
        yield note(f"provider of {signal}", f"the program sets its own, {found.path}:{line}; inferspan uses it")
    if not zero_code and not look.started_by and "instrument" not in found.calls and "generation" not in found.calls:
        yield warning(
            "models",
            f"{found.path} does not call inferspan.instrument()",
            f"add it, or start it with inferspan run {Path(found.path).name}",
        )


def _why_not_loaded(look: Look) -> str:
    disabled = look.environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "")
    if "inferspan" in disabled or "*" in disabled:
        return "take inferspan out of OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
    return "pip install 'inferspan[zero-code]' into the Python of the program, or use inferspan run"
