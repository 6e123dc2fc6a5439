"""The resource that our providers carry: service, host, process, rank of a distributed job, framework versions.

In come the environment, the metadata of installed packages and how the program was started, out goes an SDK ``Resource``; no framework is
imported and no device touched. A fact that is not known is left out. What the user sets with ``OTEL_RESOURCE_ATTRIBUTES`` or
``OTEL_SERVICE_NAME`` wins; without a name the service is called like the script or module that runs. ``Detector`` is the
``inferspan`` entry of the ``opentelemetry_resource_detector`` entry points.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource, ResourceDetector

from inferspan import semconv
from inferspan.export.older_sdk import instance_id
from inferspan.ranks import ranks

__all__ = ["Detector", "detected_resource", "program_name"]

_UNNAMED = "unknown_service"
_INTERACTIVE = ("ipykernel", "marimo", "google.colab")
"""Modules of notebooks: what runs there is the notebook's server."""

_CUDNN_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11")


class Detector(ResourceDetector):
    """Detects what ``detected_resource`` adds, for providers that others set up."""

    def detect(self) -> Resource:
        """Read the environment and package metadata."""
        facts = _facts(os.environ)
        if hasattr(ResourceDetector, "is_process_dependent"):
            facts |= _process()
        return Resource(facts)

    def is_process_dependent(self) -> bool:
        """The SDK asks again in a forked child, from 1.44 on; others would leave the child its parent's process id."""
        return True


def detected_resource(environ: Mapping[str, str] | None = None) -> Resource:
    """Build the resource of our own providers.

    Args:
        environ: where ranks are read from, default ``os.environ``. The SDK itself reads its variables from ``os.environ``.
    """
    facts = {SERVICE_INSTANCE_ID: instance_id(), **_process(), **_facts(os.environ if environ is None else environ)}
    found = Resource(facts).merge(Resource.create())
    if str(found.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
        name = program_name(sys.argv, sys.modules)
        if name is not None:
            return found.merge(Resource({SERVICE_NAME: name}))
    return found


def program_name(argv: Sequence[str], modules: Mapping[str, Any]) -> str | None:
    """The name of the running script or module; ``None`` in a notebook, at a prompt and for ``python -c``.

    Args:
        argv: ``sys.argv``.
        modules: ``sys.modules``.
    """
    path = argv[0] if argv else ""
    if path in ("", "-", "-c") or any(name in modules for name in _INTERACTIVE):
        return None
    # `python -m pkg` runs pkg.__main__; a script has no module that could be imported.
    spec = getattr(modules.get("__main__"), "__spec__", None)
    name = str(getattr(spec, "name", None) or "").removesuffix(".__main__")
    if name and not name.startswith("__"):
        return name
    stem = os.path.splitext(os.path.basename(path))[0]
    if stem == "__main__":
        stem = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return stem or None


def _facts(environ: Mapping[str, str]) -> dict[str, str | int]:
    facts: dict[str, str | int | None] = {semconv.HOST_NAME: socket.gethostname() or None, **ranks(environ), **_versions()}
    return {key: value for key, value in facts.items() if value is not None}


def _process() -> dict[str, str | int]:
    return {semconv.PROCESS_PID: os.getpid()}


def _versions() -> dict[str, str | None]:
    # torch.backends.cudnn.version() loads the library, so its package is asked instead.
    torch = sys.modules.get("torch")
    cudnn = next((found for name in _CUDNN_PACKAGES if (found := _version(name))), None)
    return {
        semconv.TORCH_VERSION: _version("torch"),
        semconv.TRANSFORMERS_VERSION: _version("transformers"),
        semconv.CUDA_VERSION: getattr(getattr(torch, "version", None), "cuda", None),
        semconv.CUDNN_VERSION: cudnn,
    }


def _version(package: str) -> str | None:
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(loaded, str):
        return str(loaded)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
