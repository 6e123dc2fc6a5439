"""Statistics of recorded calls together with what was found inside in the same calls.

In: outputs of recorded calls, and what hooks have found in the latest call of each module. Out: attributes of the spans of these calls.
"""

from __future__ import annotations

from typing import Any

from inferspan.capture.attention.log import Found as Attended
from inferspan.capture.modules.output_stats import OutputStats
from inferspan.records import AttributeValue, ModuleInfo

from .functions import Returned
from .inputs import InputFigures
from .memory import Used
from .watch import Looked

__all__ = ["Collector", "Found"]

Found = Looked | Returned | InputFigures | Used | Attended
"""What is found in one call, with attributes for its span."""


class Collector(OutputStats):
    """Statistics of recorded calls, with what was found inside; stands where those of outputs alone do.

    Args:
        log: of the request, with ``latest`` and ``memory``.
        outputs: statistics of outputs, if those are wanted.
    """

    def __init__(self, log: Any, outputs: OutputStats | None) -> None:
        super().__init__()
        self._log = log
        self._outputs = outputs
        self._order: list[tuple[int | None, list[Found]]] = []

    def append(self, output: object, module: ModuleInfo | None = None) -> int | None:
        """As of the base; what was found in the same call joins it."""
        index = None if self._outputs is None else self._outputs.append(output, module)
        log = self._log
        found: list[Found] = [] if module is None else [*log.latest.pop(module.name, ())]
        if module is not None and log.memory is not None and (used := log.memory.latest.pop(module.name, None)) is not None:
            found.append(used)
        # What attends inside a layer is found in each of the layers around it, and stands on the innermost span.
        found = [one for one in found if not isinstance(one, Attended) or not one.counted]
        for one in found:
            if isinstance(one, Looked | Attended):
                one.counted = True
        if index is None and not found:
            return None
        self._order.append((index, found))
        return len(self._order) - 1

    def read(self) -> list[dict[str, AttributeValue]]:
        """As of the base."""
        order, self._order = self._order, []
        outputs = [] if self._outputs is None else self._outputs.read()
        return [
            {
                **{key: value for one in found for key, value in one.attributes().items()},
                **(outputs[index] if index is not None else {}),
            }
            for index, found in order
        ]
