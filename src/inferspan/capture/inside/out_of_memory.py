"""What is known when memory has run out: module, step, shapes, what the allocator holds, and torch's snapshot of it on request.

In: the exception that ends a request. Out: attributes of the request and its step, and an event. The module is found in the frames that
the exception has passed through, so nothing has to be recorded before. Nothing here waits for the device, and nothing keeps the exception,
its frames or their tensors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_calls

from inferspan import semconv
from inferspan.attribute_values import exportable_text, shape_attributes
from inferspan.capture.device.memory import has_allocator, reader_on
from inferspan.capture.modules.shapes import describe
from inferspan.guard import contain, pass_on
from inferspan.ranks import filled
from inferspan.records import AttributeValue, RequestEnd

__all__ = ["Shortage", "is_out_of_memory", "note_failure", "shortage_of"]

LONGEST_SUMMARY = 4096
LONGEST_TEXT = 65_536
_KIND: Any = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
_WORDS = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
_REQUESTED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)?) ?(bytes|[KMGT]iB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DEVICE = re.compile(r"GPU (\d+) ")
_CALLS = vars(torch_calls)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that torch could not allocate memory, on a CUDA device or on the CPU."""
    return isinstance(error, _KIND) or (isinstance(error, RuntimeError) and _WORDS.search(str(error)[:LONGEST_TEXT]) is not None)


class Shortage:
    """What is known of one out-of-memory error.

    Attributes:
        step: number of the step of the request; ``None`` outside of one.
        module: path of the innermost module of the model that ran, if one is known.
        error: identity of the exception.
        snapshot: what has become of the snapshot; ``None`` if none is wanted.
    """

    def __init__(self, error: BaseException, step: int | None, module: str | None, snapshot: str | None) -> None:
        self.error, self.step, self.module, self.snapshot = id(error), step, module, snapshot
        self.requested: int | None = None
        self.attributes: dict[str, AttributeValue] = {}
        """Of the event."""

    @property
    def of_step(self) -> dict[str, AttributeValue]:
        """Attributes of the step that has failed."""
        return {} if self.module is None else {semconv.OOM_MODULE: self.module}

    def settle(self, end: RequestEnd) -> RequestEnd:
        """The end of the request with what is known, if that is how it has ended."""
        if end.failure is None:
            return end
        pairs = ((semconv.OOM_MODULE, self.module), (semconv.OOM_STEP, self.step), (semconv.OOM_REQUESTED, self.requested))
        known = {key: value for key, value in pairs if value is not None}
        event = (semconv.OOM_EVENT, end.end_ns, self.attributes)
        return replace(end, attributes={**end.attributes, **known}, events=(*end.events, event))

    def __str__(self) -> str:
        where = [] if self.step is None else [f"step {self.step}"]
        if self.module is not None:
            shapes: Any = self.attributes.get(semconv.INPUT_SHAPES, ())
            where.append(f"{self.module or 'the model itself'} ({', '.join(shapes) or 'no tensors'})")
        asked = "" if self.requested is None else f", {self.requested:,} bytes could not be allocated"
        return (", ".join(where) or "outside of modules") + asked


def note_failure(call: Any, error: BaseException) -> None:
    """An exception ends a request: gather what is known if it says that memory has run out. Contains errors of its own."""
    with contain("out of memory"):
        if not call.recording or not is_out_of_memory(error):
            call.shortage = None
            return
        call.shortage = found = shortage_of(error, call)
        call.engine.inside.memory.shortages.append(str(found))
        if call.outer is not None:
            call.outer.shortage = found


def shortage_of(error: BaseException, call: Any) -> Shortage:
    """What is known of an out-of-memory error that ends a request; a part that cannot be read is left out.

    Args:
        error: the exception.
        call: the request.
    """
    root: nn.Module | None = call.owner.model
    text = str(error)[:LONGEST_TEXT]
    attributes: dict[str, AttributeValue] = {}
    module: str | None = None
    with contain("out of memory"):
        module, attributes = _innermost(error, root)
    found = Shortage(error, _step_of(call), module, None)
    found.attributes = attributes
    if module is not None:
        attributes[semconv.MODULE_NAME] = module
    if found.step is not None:
        attributes[semconv.STEP_INDEX] = found.step
    asked = _REQUESTED.search(text)
    if asked is not None:
        found.requested = attributes[semconv.OOM_REQUESTED] = int(float(asked[1]) * _UNITS[asked[2]])
    device = _device_of(text, call.owner.device)
    with contain("out of memory"):
        attributes.update(_of_allocator(device))
    wanted = call.owner.settings.memory_snapshot
    if wanted is not None:
        found.snapshot = _known_snapshot(call, error) or _snapshot(filled(wanted, os.environ), device)
        attributes[semconv.OOM_SNAPSHOT] = found.snapshot
    return found


def _innermost(error: BaseException, root: nn.Module | None) -> tuple[str | None, dict[str, AttributeValue]]:
    """Path of the innermost module of the model that the exception came out of, and shapes of what it was called with."""
    names = {} if root is None else {id(module): name for name, module in root.named_modules()}
    found: tuple[str, Any, Any] | None = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals is _CALLS:
            known = frame.f_locals
            name = names.get(id(known.get("self")))
            if name is not None:
                found = name, known.get("args"), known.get("kwargs")
        trace = trace.tb_next
    if found is None:
        return None, {}
    name, args, kwargs = found
    given = (*(args if isinstance(args, tuple) else ()), *(kwargs.values() if isinstance(kwargs, dict) else ()))
    return name, shape_attributes(describe(given), semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)


def _step_of(call: Any) -> int | None:
    steps = getattr(call, "steps", None)
    if steps is None:
        return None
    if steps.open:
        return int(steps.index)
    kept = steps.rows.kept
    return int(kept[-1][0]) if kept and kept[-1][4] is not None else None


def _device_of(text: str, device: torch.device | None) -> torch.device | None:
    named = _DEVICE.search(text)
    return device if named is None else torch.device("cuda", int(named[1]))


def _of_allocator(device: torch.device | None) -> dict[str, AttributeValue]:
    reading = reader_on(device)()
    pairs = zip((semconv.OOM_ALLOCATED, semconv.OOM_RESERVED, semconv.OOM_HIGH_WATER), reading, strict=True)
    found: dict[str, AttributeValue] = {key: value for key, value in pairs if value is not None}
    if device is not None:
        found[semconv.DEVICE] = str(device)
    if has_allocator(device):
        summary = torch.cuda.memory_summary(device, abbreviated=True)
    else:
        amounts = (("resident", reading.allocated), ("at most", reading.high_water))
        told = ", ".join(f"{name} {value:,} bytes" for name, value in amounts if value is not None)
        summary = f"no allocator to ask on a CPU model; process: {told or 'unknown'}"
    found[semconv.OOM_SUMMARY] = exportable_text(summary[:LONGEST_SUMMARY])
    return found


def _known_snapshot(call: Any, error: BaseException) -> str | None:
    """What has become of it in a request inside this one, which the same exception has ended."""
    inner: Shortage | None = call.shortage
    return inner.snapshot if inner is not None and inner.error == id(error) else None


def _snapshot(path: str, device: torch.device | None) -> str:
    """Write torch's snapshot; the file, or why there is none."""
    if not has_allocator(device):
        return "none: there is no allocator to ask on a CPU model"
    recorded: Callable[[], bool] | None = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if recorded is None:
        return "none: this version of torch does not tell whether its history of memory is recorded"
    if not recorded():
        return "none: call torch.cuda.memory._record_memory_history() before, so that there is a history to write"
    try:
        torch.cuda.memory._dump_snapshot(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        return f"none: {error.strerror or type(error).__name__}"
    except Exception as error:
        pass_on(error)
        return f"none: {type(error).__name__}"
    return exportable_text(path)
