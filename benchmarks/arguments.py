"""What the commands have in common: kinds of arguments, and which variables of the shell count."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

__all__ = ["leave_out_variables", "positive"]


def positive(text: str) -> int:
    """A whole number above 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("use a whole number above 0")
    return number


def leave_out_variables(say: Callable[[str], None]) -> None:
    """Delete the shell's variables that would send spans elsewhere or change what is recorded; who records stays as it was chosen."""
    from inferspan.settings import EXTENSION_VARIABLE

    for name in [name for name in os.environ if name.startswith(("OTEL_", "INFERSPAN_")) and name != EXTENSION_VARIABLE]:
        say(f"{name} is left out of account")
        del os.environ[name]
