"""The command ``version``: prints the versions that matter in a bug report."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from typing import Any

from inferspan import extension

__all__ = ["add_version"]

_DISTRIBUTIONS = (
    "inferspan", "torch", "transformers", "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc", "opentelemetry-instrumentation", "opentelemetry-util-genai", "nvidia-ml-py", "psutil",
)  # fmt: skip

def add_version(commands: Any) -> None:
    """Add ``version`` to a parser's commands."""
    version = commands.add_parser("version", help="print the versions that matter in a bug report")
    version.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    width = max(len(name) for name in _DISTRIBUTIONS)
    for name in _DISTRIBUTIONS:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "not installed"
        print(f"{name:<{width}}  {found}")
    print(f"{'python':<{width}}  {platform.python_version()} ({platform.python_implementation()})")
    print(f"{'platform':<{width}}  {platform.platform()}")
    print(f"{'recorder':<{width}}  {extension.find()}")
