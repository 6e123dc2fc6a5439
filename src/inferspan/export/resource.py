"""The resource that our providers carry: host, rank of a distributed job, framework versions.

In come the environment and the metadata of installed packages, out goes an SDK ``Resource``; no framework is imported and no device
touched. A fact that is not known is left out. What the user sets with ``OTEL_RESOURCE_ATTRIBUTES`` or ``OTEL_SERVICE_NAME`` wins.
``Detector`` is the ``inferspan`` entry of the ``opentelemetry_resource_detector`` entry points.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource, ResourceDetector

from inferspan import semconv
from inferspan.ranks import ranks

__all__ = ["Detector", "detected_resource"]

_CUDNN_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11")


class Detector(ResourceDetector):
    """Detects what ``detected_resource`` adds, for providers that others set up."""

    def detect(self) -> Resource:
        """Read the environment and package metadata."""
        return Resource(_facts(os.environ))


def detected_resource(environ: Mapping[str, str] | None = None) -> Resource:
    """Build the resource of our own providers.

    Args:
        environ: where ranks are read from, default ``os.environ``. The SDK itself reads its variables from ``os.environ``.
    """
    return Resource(_facts(os.environ if environ is None else environ)).merge(Resource.create())


def _facts(environ: Mapping[str, str]) -> dict[str, str | int]:
    facts: dict[str, str | int | None] = {semconv.HOST_NAME: socket.gethostname() or None, **ranks(environ), **_versions()}
    return {key: value for key, value in facts.items() if value is not None}


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
