"""Exceptions as spans record them: type, and text without the values that it may quote."""

from __future__ import annotations

import re
import traceback

from inferspan.attribute_values import exportable_text
from inferspan.guard import pass_on
from inferspan.records import Failure

__all__ = ["error_type", "failure_of"]

MAX_MESSAGE = 2048
MAX_STACKTRACE = 16_384
LOOKED_AT = 65_536
"""Characters of an exception's text that are searched for values; a message of megabytes would take a second."""
_NUMBER = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_LISTED = re.compile(rf"(?:tensor|array)\([^)]*(?:\)|$)|(?:[\[(]\s*)?(?<!\d){_NUMBER}(?:[\s,\[\]()]+{_NUMBER}){{3,}}(?:[\s,.]*[\])])*")
"""Printed tensors, and four numbers or more in a row, in brackets of any kind or none."""


def error_type(error: BaseException) -> str:
    """Qualified class name of an exception, bare for built-ins, as ``error.type`` wants it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def failure_of(error: BaseException, *, content: bool) -> Failure:
    """Reduce an exception to text; without leave to record content, printed tensors and lists of numbers are cut out of it."""
    try:
        message = str(error)
    except Exception as own:
        pass_on(own)
        message = "<the exception's text cannot be read>"
    try:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as own:
        pass_on(own)
        trace = ""
    message, trace = message[:LOOKED_AT], trace[-LOOKED_AT:]
    if not content:
        message, trace = _LISTED.sub("<values left out>", message), _LISTED.sub("<values left out>", trace)
    return Failure(error_type(error), exportable_text(message[:MAX_MESSAGE]), exportable_text(trace[-MAX_STACKTRACE:]))
