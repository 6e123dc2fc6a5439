"""From what a tracer raised to a ``TraceError``: the class of the failure and its place in the model's source."""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Iterator
from types import CodeType, FrameType

import torch
from torch import nn

from .errors import Place, TraceError

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(__file__) + os.sep
_MOST_TEXT = 600
_HELP = re.compile(
    r"\n\s*(?:consider using data-dependent|Caused by|User Stack|For more information|The following call raised|For more help)"
)
_BOOL = re.compile(r"expression (Eq|Ne)\(z?u\w*\d+, [01]\)")
_DECIDES = re.compile(r"^(if|elif|while|assert)\b|\bif\b.+\belse\b")
_DTYPE = re.compile(
    r"same dtype|dtypes? (to )?match|must have the same dtype|expected (scalar type|.*dtype)|different dtypes?|mixed dtype", re.IGNORECASE
)
_SHAPE = re.compile(
    r"shape|size|dimension|broadcast|cannot be multiplied|number of elements|out of range|must match|inner dim|reduction dim", re.IGNORECASE
)
_INPUT = re.compile(
    r"missing a? ?(\d+ )?required|unexpected keyword|must (specify|be specified|be provided|provide|pass)|have to (specify|be)"
    r"|need to (specify|pass|provide)|should be (specified|provided)|is required|NoneType|got an unexpected",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"\.numpy\(\) is not supported|data pointer|no fake impl|fake impl|not registered|meta kernel|Meta tensors|FakeTensor"
    r"|tensor subclass|not supported for tensor",
    re.IGNORECASE,
)


def frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Frames from the call of the tracer to the failure, through what raised an error of a leaf."""
    yield from traceback.walk_tb(error.__traceback__)
    if isinstance(error, TraceError) and error.__cause__ is not None:
        yield from frames(error.__cause__)


def place(error: BaseException, model: nn.Module) -> Place | None:
    """Where an error came from: the innermost line that is neither torch's nor ours, and the open modules of ``model``."""
    paths = {id(module): path for path, module in model.named_modules()}
    modules: list[str] = []
    found: tuple[CodeType, int] | None = None
    for frame, line in frames(error):
        code = frame.f_code
        own = frame.f_locals.get("self")
        if code.co_name in ("_call_impl", "_wrapped_call_impl") and id(own) in paths and isinstance(own, nn.Module):
            path = paths[id(own)]
            if not modules or modules[-1] != path:
                modules.append(path)
        if modules and not code.co_filename.startswith((_TORCH, _OWN, "<")):
            found = code, line
    if found is None and not modules:
        return None
    if found is None:
        return Place(None, None, None, tuple(modules))
    code, line = found
    source = linecache.getline(code.co_filename, line).strip() or None
    return Place(code.co_filename, line, source, tuple(modules), getattr(code, "co_qualname", code.co_name))


def reason(error: BaseException, where: Place | None) -> str:
    """The class of a failure, a key of ``REASONS``."""
    if isinstance(error, TraceError):
        return error.reason
    text = str(error)
    names = {type(error).__name__, *(cls.__name__ for cls in type(error).__mro__)}
    source = (where.source if where else None) or ""
    if "GuardOnDataDependentSymNode" in names or "data-dependent" in text:
        return _of_data(error, text, source)
    if _CALL.search(text) or "UnsupportedFakeTensorException" in names or "UnsupportedOperatorException" in names:
        return "untraceable_call"
    if _DTYPE.search(text):
        return "dtype"
    if _INPUT.search(text):
        return "input"
    if isinstance(error, (RuntimeError, ValueError, IndexError)) and _SHAPE.search(text):
        return "shape"
    return "other"


def _of_data(error: BaseException, text: str, source: str) -> str:
    """What a value would have decided: iteration, a size, or control flow."""
    if ".tolist(" in source:
        return "value_size"
    if any(frame.f_code.co_name == "__iter__" and frame.f_code.co_filename.startswith(_TORCH) for frame, _ in frames(error)):
        return "iteration"
    sized = re.search(r"Size-like symbols: (?!none)", text) is not None
    if "extract specialized integer" in text or sized or any(call in source for call in ("range(", "nonzero(")):
        return "value_size"
    if _BOOL.search(text) or _DECIDES.search(source):
        return "control_flow"
    return "value_size" if re.search(r"\bint\(|\.item\(", source) else "control_flow"


def failure(error: Exception, model: nn.Module) -> TraceError:
    """The error as a ``TraceError`` with its class and its place in the source of ``model``; one of these gets the place that it lacks."""
    where = place(error, model)
    if isinstance(error, TraceError):
        error.where = error.where or where
        return error
    text = str(error).strip()
    text = _HELP.split(text)[0].strip()
    kind = reason(error, where)
    made = TraceError(f"{type(error).__name__}: {text[:_MOST_TEXT]}", kind, where)
    made.__cause__ = error
    return made
