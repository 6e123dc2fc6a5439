"""A parser of arguments that names the option or command which a misspelt one is close to."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

__all__ = ["Parser"]

_CHOICES = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)")


class Parser(argparse.ArgumentParser):
    """``argparse.ArgumentParser`` with hints; each command checks its own options."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse has it; but what is not known is an error of this command, not of the whole program."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            known = [option for action in self._actions for option in action.option_strings]
            self.error(f"unrecognized arguments: {' '.join(left)}{_hint(left, known)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        """End with the usage and a message, with the choice that is meant."""
        choice = _CHOICES.search(message)
        hint = _hint([choice["given"]], re.findall(r"[\w./-]+", choice["known"])) if choice else ""
        super().error(message + hint)


def _hint(given: Iterable[str], known: Sequence[str]) -> str:
    close = [difflib.get_close_matches(word.partition("=")[0], known, n=1) for word in given]
    found = next((words[0] for words in close if words), None)
    return f"; did you mean {found}?" if found else ""
