"""The data flow of one pass, as handles, the command ``graph`` and reports show it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inferspan.pictures.picture import Picture
from inferspan.pictures.text import clean
from inferspan.records import FlowCall, PassFlow
from inferspan.text.quantities import bytes_text

from .analysis import MODEL, Analysis
from .picture import draw

__all__ = ["DataFlow", "FlowTensor"]

_SHOWN = 200


@dataclass(frozen=True)
class FlowTensor:
    """A tensor on its way from one module to another: an edge.

    Attributes:
        producer: path of the module that returned it, or name of an input of the model.
        producer_call: which of the module's calls in the pass, from 1; ``None`` for inputs and earlier passes.
        consumer: path of the module; empty for the model itself.
        consumer_call: which of its calls; ``None`` for the model.
        kind: ``input``: the consumer takes it; ``output``: the consumer returns it, and the producer has made it inside.
        origin: ``module``, ``input``, or ``earlier``: the module returned it in an earlier pass of the request.
        shape: of what arrives; ``None`` if it has none.
        dtype: such as ``float32``.
        bytes: of its elements, ``None`` if not known.
        via: operations between, in order; empty if it is the same tensor.
        skip: whether it also reaches the consumer through other modules: a skip connection.
        consumers: how many modules use the tensor in the end.
        inner: whether a module around the consumer takes it as well.
        final: whether the consumer uses it itself, rather than a module inside of it.
    """

    producer: str
    producer_call: int | None
    consumer: str
    consumer_call: int | None
    kind: str
    origin: str
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int | None
    via: tuple[str, ...]
    skip: bool
    consumers: int
    inner: bool
    final: bool

    def __str__(self) -> str:
        shape = "?" if self.shape is None else "x".join(map(str, self.shape)) or "scalar"
        source = _called(self.producer, self.producer_call) + {"input": " (input)", "earlier": " (earlier pass)"}.get(self.origin, "")
        target = _called(self.consumer, self.consumer_call) if self.consumer or self.consumer_call else "the model's result"
        if self.kind == "output" and self.consumer_call:
            target = f"result of {target}"
        facts = [f"{shape} {self.dtype}, {bytes_text(self.bytes)}"]
        facts += [f"via {', '.join(self.via)}"] if self.via else []
        facts += ["skips"] if self.skip else []
        facts += [f"{self.consumers} consumers"] if self.consumers > 1 else []
        return clean(f"{source} -> {target}: {'; '.join(facts)}")


def _called(name: str, call: int | None) -> str:
    return name if call is None or call == 1 else f"{name} #{call}"


class DataFlow:
    """The data flow of one pass: iterate over its edges, print it, or draw it.

    Attributes:
        title: of pictures.
        step: number of the step; ``None`` outside of one.
        edges: in the order in which they were seen.
        modules: paths of the recorded modules, in the order of their first calls.
        left_out: numbers of what was left out, by reason.
        notes: what was not recorded, and why, a sentence each.
    """

    def __init__(self, found: PassFlow | None, title: str = "", notes: Sequence[str] = ()) -> None:
        found = found or PassFlow(None, (), (), {})
        self._calls, self._raw = found.calls, found.edges
        self.title, self.step, self.left_out = title, found.step, dict(found.left_out)
        self.notes = (*notes, *found.notes)
        self._analysis = Analysis(found.calls, found.edges)
        numbers: Counter[str] = Counter()
        self._which: dict[int, int] = {}
        for call in sorted(found.calls, key=lambda one: one.number):
            numbers[call.name] += 1
            self._which[call.number] = numbers[call.name]
        self.modules = tuple(numbers)
        names = {call.number: call.name for call in found.calls}
        self.edges = tuple(
            FlowTensor(
                edge.name, self._which.get(edge.source), names.get(edge.target, ""), self._which.get(edge.target), edge.kind, edge.origin,
                edge.shape, edge.dtype, edge.bytes, edge.via, skip, consumers, inner, final,
            )
            for edge, skip, consumers, inner, final in zip(
                found.edges, self._analysis.skip, self._analysis.consumers, self._analysis.inner, self._analysis.final, strict=True
            )
        )  # fmt: skip

    def __iter__(self) -> Any:
        return iter(self.edges)

    def __len__(self) -> int:
        return len(self.edges)

    def __repr__(self) -> str:
        return f"<data flow: {len(self.edges)} edges of {len(self.modules)} modules>"

    def __str__(self) -> str:
        shown = [edge for edge in self.edges if edge.final]
        where = "" if self.step is None else f" in step {self.step}"
        lines = [f"data flow of {len(self._calls):,} module calls, {len(shown):,} edges{where}"]
        lines += [f"  {edge}" for edge in shown[:_SHOWN]]
        lines += [f"  and {len(shown) - _SHOWN:,} more"] if len(shown) > _SHOWN else []
        lines += [f"left out: {', '.join(f'{count:,} {reason}' for reason, count in self.left_out.items())}"] if self.left_out else []
        return "\n".join([*lines, *self.notes])

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "schema": 1,
            "title": self.title,
            "step": self.step,
            "modules": [
                {"path": call.name, "class": call.type, "call": self._which[call.number], "inside": self._inside(call)}
                for call in self._calls
            ],
            "edges": [
                {**asdict(edge), "shape": None if edge.shape is None else list(edge.shape), "via": list(edge.via)} for edge in self.edges
            ],
            "left_out": self.left_out,
            "notes": list(self.notes),
        }

    def _inside(self, call: FlowCall) -> str | None:
        return next((other.name for other in self._calls if other.number == call.parent), None) if call.parent != MODEL else None

    def to_json(self, indent: int | None = None) -> str:
        """``as_dict`` as JSON."""
        return json.dumps(self.as_dict(), indent=indent)

    def picture(self, ignore: Sequence[str] = (), depth: int | None = None) -> Picture:
        """The edges between modules that make tensors and those that use them, as boxes and links.

        Args:
            ignore: modules that are one box each, with nothing of the inside: paths, globs, names of classes, or ``re:`` and a regular
                expression that is matched from the start of the path.
            depth: modules with more parts in their path are shown as the one around them; default: as deep as gives 300 boxes.

        Raises:
            ValueError: a regular expression is none, or ``depth`` is below 1.
        """
        return draw(self.title or "data flow", self._calls, self._raw, self._analysis, self._which, ignore, depth)

    def to_dot(self, ignore: Sequence[str] = (), depth: int | None = None) -> str:
        """The picture in the language of Graphviz; arguments as for ``picture``."""
        return self.picture(ignore, depth).to_dot()

    def to_svg(self, ignore: Sequence[str] = (), depth: int | None = None) -> str:
        """The picture as SVG, laid out by inferspan; arguments as for ``picture``."""
        return self.picture(ignore, depth).to_svg()
