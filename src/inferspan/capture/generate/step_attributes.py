"""Facts captured on the model's thread when a step ends; span attributes are built from them later.

In: the row of a step, and later the statistics of its logits. Out: the attributes of the step's span.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from inferspan import semconv
from inferspan.attribute_values import shape_attributes
from inferspan.capture.device.clock import Measured
from inferspan.capture.logits.statistics import StepLogits
from inferspan.capture.logits.statistics import attributes as logit_attributes
from inferspan.capture.modules.shapes import Described
from inferspan.guard import contain
from inferspan.records import AttributeValue, PhaseKey

__all__ = ["AnyStepRow", "StepFacts", "StepRow"]

class StepRow(NamedTuple):
    """Facts of a step, captured on the model's thread when it ends. Step logs append plain tuples in this order, which cost less."""

    number: int
    start: int
    """Reading of the monotonic clock, as ``end`` is."""
    end: int
    phase: PhaseKey
    failure: str | None
    """Type of the exception that ended it."""
    inputs: Described
    outputs: Described
    """Its logits of one position."""
    width: int | None
    """Positions of a row in the forward pass."""
    length: int
    """Tokens of a row in the cache and in the step."""
    more: dict[str, Any] | None
    """Attributes that exist already."""
    measured: Measured | None
    """Device time, known later."""


AnyStepRow: TypeAlias = (
    "tuple[int, int, int, PhaseKey, str | None, Described, Described, int | None, int, dict[str, Any] | None, Measured | None]"
)


class StepFacts:
    """Callable that returns the attributes of one step.

    Args:
        row: its facts.
        logits: statistics of its logits.
        running: sequences that ran in it, where the statistics do not tell.
        content: whether attributes may hold token ids and texts.
        decode: returns the text of a token id; without it there are no texts.
    """

    __slots__ = ("_content", "_decode", "_logits", "_row", "_running")

    def __init__(
        self, row: AnyStepRow, logits: StepLogits | None, *, running: int | None = None, content: bool, decode: Callable[[int], str] | None
    ) -> None:
        self._running = running
        self._row, self._logits, self._content, self._decode = row, logits, content, decode

    def __call__(self) -> dict[str, AttributeValue]:
        """Build the attributes. Those that fail are left out: the modules of the step need its span as their parent."""
        attributes: dict[str, AttributeValue] = {}
        with contain("attributes of a step"):
            attributes = self._attributes()
        return attributes if self._logits is None else {**attributes, **self._of_logits(self._logits)}

    def _attributes(self) -> dict[str, AttributeValue]:
        row = StepRow(*self._row)
        attributes = shape_attributes(row.inputs, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)
        attributes |= shape_attributes(row.outputs, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)
        if row.width is not None:
            attributes[semconv.STEP_TOKENS] = row.width
            attributes[semconv.SEQUENCE_LENGTH] = row.length
        running = self._running if self._logits is None else self._logits.running
        if running is not None:
            attributes[semconv.STEP_ROWS] = running
        if row.measured is not None and row.measured.seconds is not None:
            attributes[semconv.DEVICE_TIME] = row.measured.seconds
        return attributes | row.more if row.more else attributes

    def _of_logits(self, logits: StepLogits) -> dict[str, AttributeValue]:
        """Attributes of the statistics; if the tokenizer fails, without texts."""
        found = logit_attributes(logits, content=self._content, decode=None)
        if self._content and self._decode is not None:
            with contain("token texts"):
                found = logit_attributes(logits, content=True, decode=self._decode)
        return found
