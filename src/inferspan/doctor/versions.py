"""Versions of what takes part, and whether they fit."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import inferspan
from inferspan import extension
from inferspan.doctor.findings import Finding, Look, note, ok, problem, warning
from inferspan.settings import EXTENSION_VARIABLE

__all__ = ["recorder", "versions"]

_OLDEST = {"torch": "2.4", "transformers": "4.56", "opentelemetry-api": "1.40", "opentelemetry-sdk": "1.40"}
_NEEDED = {
    "opentelemetry-api": "pip install opentelemetry-api",
    "opentelemetry-sdk": "pip install opentelemetry-sdk",
    "nvidia-ml-py": "pip install nvidia-ml-py",
    "psutil": "pip install psutil",
}
_OTHERS = {
    "exporter for HTTP": "opentelemetry-exporter-otlp-proto-http",
    "exporter for gRPC": "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-instrumentation": "opentelemetry-instrumentation",
    "opentelemetry-distro": "opentelemetry-distro",
    "accelerate": "accelerate",
    "diffusers": "diffusers",
    "sentence-transformers": "sentence-transformers",
    "rich": "rich",
}


def versions(look: Look) -> Iterator[Finding]:
    """Python, inferspan, torch, transformers, OpenTelemetry."""
    yield note("python", f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}")
    yield note("platform", platform.platform())
    yield note("inferspan", f"{inferspan.__version__}, {Path(inferspan.__file__).parent}")
    yield _torch()
    yield _optional("transformers")
    for name, fix in _NEEDED.items():
        found = _version(name)
        if found is None:
            yield problem(name, "not installed", fix)
        else:
            yield _judged(name, found)
    api, sdk = _version("opentelemetry-api"), _version("opentelemetry-sdk")
    if api and sdk and _number(api)[:2] != _number(sdk)[:2]:
        fix = f"pip install opentelemetry-api=={sdk} opentelemetry-sdk=={sdk}"
        yield problem("OpenTelemetry", f"API {api} and SDK {sdk} do not fit", fix)
    for name, package in _OTHERS.items():
        found = _version(package) or "not installed"
        yield note(name, found if name == package else f"{package} {found}")


def recorder(look: Look) -> Iterator[Finding]:
    """The C extension, or why Python code records module calls."""
    found = extension.find(look.environ)
    if found.module is not None:
        yield ok("C extension", "records module calls")
    elif found.broken:
        fix = "pip install --no-cache-dir --force-reinstall --no-deps inferspan; Python code records until then"
        yield problem("C extension", found.reason, fix)
    elif look.environ.get(EXTENSION_VARIABLE, "").strip():
        yield note("C extension", "switched off; Python code records module calls", EXTENSION_VARIABLE)
    else:
        yield warning(
            "C extension",
            f"{found.reason}; Python code records module calls, which takes longer",
            "install a C compiler and the headers of Python (Debian: apt-get install gcc python3-dev), then pip install --no-cache-dir"
            " --force-reinstall --no-deps inferspan",
        )


def _torch() -> Finding:
    found = _version("torch")
    if found is None:
        return problem("torch", "not installed, so there is no model to observe", "pip install torch")
    return _judged("torch", found)


def _optional(name: str) -> Finding:
    found = _version(name)
    return note(name, "not installed") if found is None else _judged(name, found)


def _judged(name: str, found: str) -> Finding:
    oldest = _OLDEST.get(name)
    if oldest is not None and _number(found) < _number(oldest):
        return problem(name, f"{found} is older than {oldest}, the oldest that is tested", f"pip install --upgrade '{name}>={oldest}'")
    return ok(name, found)


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
