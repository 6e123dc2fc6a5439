"""What gives the figures of the roofline of a plain forward pass; they are computed where its span is ended."""

from __future__ import annotations

from typing import Any, Protocol

from inferspan import semconv
from inferspan.capture.generate.pass_shapes import note_output
from inferspan.capture.modules.shapes import Described, describe
from inferspan.guard import contain
from inferspan.records import ModuleBatch, Record, RequestEnd
from inferspan.roofline.request import ForwardRoofline, RequestRoofline

__all__ = ["add_roofline"]


class _Forward(Protocol):
    """What is asked of a plain forward pass."""

    roofline: Any
    pending: list[Record]
    inputs: Described
    start: int
    moving_ns: int

    def epoch(self, now: int) -> int: ...


def add_roofline(call: _Forward, output: Any, end: RequestEnd) -> None:
    """Add to the end of a pass what gives its figures, if they are wanted and it has returned. Contains errors of its own.

    Args:
        call: the pass; its batch of module calls has not been handed over.
        output: its result.
        end: how it ended.
    """
    if call.roofline is None or end.failure is not None or not end.timed:
        return
    with contain("roofline"):
        costs, facts = call.roofline.costs, call.roofline.facts
        if not (costs.kind or call.pending):
            return  # of a model of no known structure: its work follows from the calls of its modules
        note_output(facts, output)
        batch = next((record for record in call.pending if isinstance(record, ModuleBatch)), None)
        calls = None if batch is None or costs.kind else batch.calls
        seconds, device = (end.end_ns - call.epoch(call.start)) / 1e9, end.attributes.get(semconv.DEVICE_TIME)
        figures = ForwardRoofline(
            costs=costs, facts=facts, inputs=call.inputs, outputs=describe(output), calls=calls, seconds=seconds,
            device=device if isinstance(device, float) else None,
        )  # fmt: skip
        end.roofline = RequestRoofline(costs, [figures], seconds, call.moving_ns / 1e9)
