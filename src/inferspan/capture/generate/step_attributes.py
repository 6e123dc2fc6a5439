"""What is known of a step when it ends, noted in few instructions: its attributes are made of it off the model's path.

In: what was noted of the step, later the statistics of its logits. Out: the attributes of the step's span.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from inferspan import semconv
from inferspan.attribute_values import shape_attributes
from inferspan.capture.logits.statistics import StepLogits
from inferspan.capture.logits.statistics import attributes as logit_attributes
from inferspan.capture.modules.shapes import Described
from inferspan.guard import contain
from inferspan.records import AttributeValue

if TYPE_CHECKING:
    from inferspan.capture.device.clock import Measured

__all__ = ["StepFacts", "StepRow"]

StepRow: TypeAlias = "tuple[int, int, int, str, str | None, Described, Described, int | None, int, dict[str, Any] | None, Measured | None]"
"""Number of a step; readings of the monotonic clock at its start and end; name of its phase; type of the exception that ended it; what
goes into the forward pass; its logits; positions per row that it holds, ``None`` if that is not known; tokens of a row in the cache and in
the step; attributes that were made already; what the device takes for it. A plain tuple, because it is made on the model's path."""


class StepFacts:
    """Callable that returns the attributes of one step.

    Args:
        kept: what was noted of it.
        logits: statistics of its logits.
        running: sequences that ran in it, where the statistics do not tell.
        content: whether token ids and texts may be in the attributes.
        decode: text of a token id; without, there are no texts.
    """

    __slots__ = ("_content", "_decode", "_kept", "_logits", "_running")

    def __init__(
        self, kept: StepRow, logits: StepLogits | None, *, running: int | None = None, content: bool, decode: Callable[[int], str] | None
    ) -> None:
        self._running = running
        self._kept, self._logits, self._content, self._decode = kept, logits, content, decode

    def __call__(self) -> dict[str, AttributeValue]:
        """The attributes; what cannot be made of what was noted is left out, since the step's modules need it as their parent."""
        attributes: dict[str, AttributeValue] = {}
        with contain("attributes of a step"):
            attributes = self._attributes()
        return attributes if self._logits is None else {**attributes, **self._of_logits(self._logits)}

    def _attributes(self) -> dict[str, AttributeValue]:
        inputs, outputs, width, length, more, measured = self._kept[5:]
        attributes = shape_attributes(inputs, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)
        attributes |= shape_attributes(outputs, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)
        if width is not None:
            attributes[semconv.STEP_TOKENS] = width
            attributes[semconv.SEQUENCE_LENGTH] = length
        running = self._running if self._logits is None else self._logits.running
        if running is not None:
            attributes[semconv.STEP_ROWS] = running
        if measured is not None and measured.seconds is not None:
            attributes[semconv.DEVICE_TIME] = measured.seconds
        return attributes | more if more else attributes

    def _of_logits(self, logits: StepLogits) -> dict[str, AttributeValue]:
        """A tokenizer that fails costs the texts only."""
        found = logit_attributes(logits, content=self._content, decode=None)
        if self._content and self._decode is not None:
            with contain("token texts"):
                found = logit_attributes(logits, content=True, decode=self._decode)
        return found
