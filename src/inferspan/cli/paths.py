"""Paths among the arguments: what ``-`` stands for in each place."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from .failure import Failure

__all__ = ["STDIN", "STDOUT", "file_or_folder", "one_on_stdout", "output", "source"]

STDIN = Path("/dev/stdin")
STDOUT = Path("/dev/stdout")


def source(text: str) -> Path:
    """A path to read; ``-`` is standard input."""
    return STDIN if text == "-" else Path(text)


def output(text: str) -> Path:
    """A path to write; ``-`` is standard output."""
    return STDOUT if text == "-" else Path(text)


def file_or_folder(text: str) -> Path:
    """A path of which nothing can be written to standard output: ``-`` is refused."""
    if text == "-":
        raise argparse.ArgumentTypeError("it cannot be standard output; give a path (./- is a file of that name)")
    return Path(text)


def one_on_stdout(outputs: Iterable[tuple[str, Path | None]], *, text: bool = False) -> bool:
    """Whether an output goes to standard output.

    Args:
        outputs: the options with their paths.
        text: whether ``--text`` prints there.

    Raises:
        Failure: several do.
    """
    found = [option for option, path in outputs if path == STDOUT] + (["--text"] if text else [])
    if len(found) > 1:
        raise Failure(f"{' and '.join(found)} cannot both go to standard output: give one of them a file")
    return bool(found) and not text
