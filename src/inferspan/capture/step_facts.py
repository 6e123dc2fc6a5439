"""What is known of a step when it ends, noted in few instructions: its attributes are made of it off the model's path.

In: shapes as ``describe`` gives them, the width of the step, the length of the sequence. Out: the attributes of the step's span.
"""

from __future__ import annotations

from typing import Any

from .. import semconv
from ..attribute_values import shape_attributes
from ..guard import contain
from ..records import AttributeValue
from .shapes import Described

__all__ = ["StepFacts"]


class StepFacts:
    """Callable that returns the attributes of one step.

    Args:
        inputs: what goes into the forward pass.
        outputs: its logits.
        width: positions per row that it holds; ``None`` if that is not known.
        length: tokens of a row in the cache and in the step.
        more: attributes that were made already.
    """

    __slots__ = ("_inputs", "_length", "_more", "_outputs", "_width", "device_time")

    def __init__(self, inputs: Described, outputs: Described, width: int | None, length: int, more: dict[str, Any] | None) -> None:
        self._inputs, self._outputs, self._width, self._length, self._more = inputs, outputs, width, length, more
        self.device_time: float | None = None
        """Seconds of the device, once they are known."""

    def on_device(self, seconds: float) -> None:
        """Note how long the device took."""
        self.device_time = seconds

    def __call__(self) -> dict[str, AttributeValue]:
        """The attributes; none if they cannot be made, since the step's modules need it as their parent."""
        with contain("attributes of a step"):
            return self._attributes()
        return {}

    def _attributes(self) -> dict[str, AttributeValue]:
        attributes = shape_attributes(self._inputs, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)
        attributes |= shape_attributes(self._outputs, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)
        if self._width is not None:
            attributes[semconv.STEP_TOKENS] = self._width
            attributes[semconv.SEQUENCE_LENGTH] = self._length
        if self.device_time is not None:
            attributes[semconv.DEVICE_TIME] = self.device_time
        return attributes | self._more if self._more else attributes
