"""The calls of a decoder inside one ``vae_decode``: of tiles, slices and batches of frames.

In: beginnings and ends of calls. Out: a stage below the decoding for each of them, once the request is closed, and their number. A decoding
that calls its decoder once has none: the call would say the same as the stage around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.capture.recording import Request
from inferspan.records import AttributeValue

__all__ = ["BLOCKS", "Blocks", "frames_of"]

BLOCKS = 128
"""Calls of the decoder with a span in one decoding; a large video may have thousands."""


class _Block(NamedTuple):
    """A call that has ended, with the numbers of its device boundaries."""

    start: int
    end: int
    begins: int
    ends: int
    failure: str | None
    attributes: dict[str, AttributeValue]


class Blocks:
    """The calls of decoders in one request. The caller contains exceptions.

    Args:
        request: records them.
    """

    __slots__ = ("_begins", "_calls", "_count", "_decodings", "_depth", "_given", "_request", "_start")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._decodings: list[tuple[int, list[_Block]]] = []
        """Number of the stage of each decoding that had several calls, with the calls."""
        self._calls: list[_Block] = []
        self._count = self._depth = 0
        self._start = self._begins = 0
        self._given: dict[str, AttributeValue] = {}

    def open(self) -> None:
        """A decoding begins."""
        self._calls = []
        self._count = self._depth = 0

    def begin(self) -> bool:
        """The decoder is called; returns whether the call will have a span, and wants attributes."""
        self._depth += 1
        if self._depth > 1:
            return False
        self._count += 1
        if self._count > BLOCKS or not self._request.recording:
            return False
        self._begins = self._boundary()
        self._start = self._request.steps.now()
        return True

    def describe(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Attributes of the call that runs, from its input."""
        self._given = dict(attributes)

    def end(self) -> bool:
        """The decoder has returned or raised; returns whether ``add`` is to come."""
        self._depth -= 1
        return not self._depth and self._count <= BLOCKS and self._request.recording

    def add(self, failure: str | None, attributes: Mapping[str, AttributeValue]) -> None:
        """Keep the call that has ended.

        Args:
            failure: type of the exception that ended it.
            attributes: from its output.
        """
        now = self._request.steps.now()
        found: dict[str, AttributeValue] = {semconv.VAE_BLOCK: self._count - 1, **self._given, **attributes}
        self._given = {}
        self._calls.append(_Block(self._start, now, self._begins, self._boundary(), failure, found))

    def close(self) -> dict[str, AttributeValue]:
        """The decoding ends; its stage is still open.

        Returns:
            Attributes of the stage: how many calls there were, if several.
        """
        calls, self._calls = self._calls, []
        stage = self._request.phases.open
        if self._count < 2 or stage is None or stage.key.number is None:
            return {}
        self._decodings.append((stage.key.number, calls))
        found: dict[str, AttributeValue] = {semconv.VAE_BLOCKS: self._count}
        if self._count > BLOCKS:
            found[semconv.VAE_BLOCKS_OMITTED] = self._count - BLOCKS
        return found

    def add_records(self) -> None:
        """Record the calls of all decodings, as far as the budget goes; the request has been closed and not yet finished."""
        decodings, self._decodings = self._decodings, []
        clock = self._request.clock
        for number, calls in decodings:
            for call in calls:
                if not self._request.budget.take_step(wanted=True):
                    continue
                device = None if clock is None or call.begins == call.ends else clock.between(call.begins, call.ends)
                self._request.add_stage(
                    semconv.STAGE_VAE_DECODE_BLOCK, call.start, call.end, parent=number, failure=call.failure, counted=False, budgeted=True,
                    attributes=call.attributes if device is None else {**call.attributes, semconv.DEVICE_TIME: device},
                )  # fmt: skip

    def _boundary(self) -> int:
        """Number of a device boundary that is recorded now."""
        clock = self._request.clock
        if clock is None:
            return 0
        clock.anchor()
        return max(0, clock.anchors - 1)


def frames_of(output: Any) -> dict[str, AttributeValue]:
    """Frames of a decoder's output [videos, channels, frames, height, width], alone, in a tuple or as ``sample``; else nothing."""
    if isinstance(output, tuple) and output:
        output = output[0]
    shape: Sequence[int] = getattr(getattr(output, "sample", output), "shape", ())
    return {semconv.OUTPUT_FRAMES: int(shape[0]) * int(shape[2])} if len(shape) == 5 else {}
