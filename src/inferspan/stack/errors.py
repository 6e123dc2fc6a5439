"""The one exception of the stack. Its text is for the person at the terminal: what is wrong, where it stands, what to do."""

from __future__ import annotations

__all__ = ["StackError"]


class StackError(Exception):
    """The stack cannot do what was asked; the text says why and what to change."""
