"""Texts of Dynamo about recompilations and graph breaks, cut to what is no content of a request.

Pure functions without torch. A guard compares values of the program, among them texts such as a prompt that is an argument: these are left
out. Comments that torch adds to a guard, with the program's source line, are left out as well.
"""

from __future__ import annotations

import re

__all__ = ["LONGEST", "break_reason", "guard_of", "reason_of"]

LONGEST = 300
"""Characters of a text on an event."""
_ID = re.compile(r"^!?\d+(/\d+)+: ")
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_CONSTANT = re.compile(r"(?<=str: )" + _QUOTED.pattern)
_REASONS = (
    ("size mismatch", "size"), ("stride mismatch", "stride"), ("rank mismatch", "rank"), ("dtype mismatch", "dtype"),
    ("device index mismatch", "device"), ("requires_grad mismatch", "requires_grad"), ("dispatch key set mismatch", "dispatch_keys"),
    ("BACKEND_MATCH", "backend"), ("GLOBAL_STATE", "global_state"), ("grad_mode", "global_state"), ("deterministic", "global_state"),
    ("Duplicate tensor", "aliasing"), ("relation", "aliasing"), (".size()", "size"), (".stride()", "stride"), ("check_obj_id", "identity"),
    ("check_type_id", "type"), ("len(", "length"), ("not in ", "keys"), (" in ", "keys"), ("==", "value"), ("<", "value"), (">", "value"),
)  # fmt: skip


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def guard_of(reason: str) -> str:
    """The guard that failed, from torch's reason of a recompilation, without texts that it compares with."""
    guard = _ID.sub("", reason.split("\n", 1)[0]).split("  # ", 1)[0]
    for sign in ("==", "!="):
        before, found, after = guard.partition(sign)
        if found:
            guard = before + found + _QUOTED.sub("'...'", after)
    return _cut(guard)


def reason_of(guard: str) -> str:
    """The kind of a guard, one of few words: ``size``, ``dtype``, ``value``, ... or ``other``."""
    return next((word for part, word in _REASONS if part in guard), "other")


def break_reason(reason: str) -> str:
    """Why Dynamo has ended a graph: the first line of its text and the explanation, without texts of the program."""
    lines = [line.strip() for line in reason.splitlines()]
    explained = next((line.partition(":")[2] for line in lines[1:] if line.startswith("Explanation:")), "")
    return _cut(_CONSTANT.sub("'...'", (lines[0] if lines else "") + (f":{explained}" if explained else "")))
