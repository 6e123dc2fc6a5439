"""How a command ends that cannot do its work."""

from __future__ import annotations

__all__ = ["Failure"]


class Failure(Exception):
    """Ends the command with this text on standard error, which names the fix, and exit code 2."""
