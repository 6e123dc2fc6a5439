"""The data flow of recorded passes, from the links between the spans of their modules.

In: a session. Out: a ``DataFlow`` for a pass that has one. Links that cannot be read are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from inferspan import semconv
from inferspan.analysis.levels import MODULE, level_of
from inferspan.data_flow.flow import DataFlow
from inferspan.records import FlowCall, FlowEdge, PassFlow
from inferspan.report.session import Request, Session, Span

__all__ = ["flow_of", "numbered_flow_of", "passes_of"]

_NAMES = (semconv.MODULE_NAME, semconv.MODULE_TYPE)
MOST_CALLS = 20_000
"""Module calls of one pass."""


def flow_of(session: Session, request: int | None = None, step: int | None = None) -> DataFlow | None:
    """The data flow of a pass, ``None`` if there is none.

    Args:
        session: result of ``read_sessions``.
        request: its number in the report, from 1; default: the latest one with a data flow.
        step: number of the step; default: the first one that has it.
    """
    found = numbered_flow_of(session, request, step)
    return None if found is None else found[1]


def numbered_flow_of(session: Session, request: int | None = None, step: int | None = None) -> tuple[int, DataFlow] | None:
    """The same with the number of its request in the report; arguments as for ``flow_of``."""
    numbered = [(request, session.requests[request - 1])] if request is not None else [*enumerate(session.requests, 1)][::-1]
    for number, one in numbered:
        if semconv.FLOW_EDGES not in one.span.attributes:
            continue
        unseen = [part for part in (one.text(semconv.UNOBSERVED) or "").split("; ") if part.startswith("data flow")]
        for above in passes_of(one):
            found = _flow(above)
            if step is None or found.step == step:
                return number, DataFlow(found, one.model or one.span.name, [f"not observed: {part}" for part in unseen])
    return None


def passes_of(request: Request) -> Iterator[Span]:
    """The spans of a request whose module calls have links of a data flow, by start."""
    waiting = [request.span]
    while waiting:
        span = waiting.pop()
        inside = [child for child in span.children if level_of(child) != MODULE]
        waiting.extend(reversed(inside))
        if any(_is_of_flow(module) for module in _modules(span)):
            yield span


def _modules(above: Span) -> Iterator[Span]:
    waiting = [child for child in reversed(above.children) if level_of(child) == MODULE]
    seen = 0
    while waiting and seen < MOST_CALLS:
        module = waiting.pop()
        seen += 1
        yield module
        waiting.extend(child for child in reversed(module.children) if level_of(child) == MODULE)


def _is_of_flow(span: Span) -> bool:
    return any(semconv.FLOW_KIND in link.attributes for link in span.links)


def _flow(above: Span) -> PassFlow:
    modules = [*_modules(above)]
    numbers = {module.span_id: number for number, module in enumerate(modules)}
    calls = tuple(
        FlowCall(number, numbers.get(one.parent_id, -1), *(_text(one.attributes, key) for key in _NAMES))
        for number, one in enumerate(modules)
    )
    left_out: Counter[str] = Counter()
    edges = []
    for number, module in enumerate(modules):
        left_out["links of a module"] += _number(module.attributes, semconv.FLOW_LEFT_OUT) or 0
        for link in module.links:
            if semconv.FLOW_KIND in link.attributes:
                edge = _edge(number, link.attributes, numbers.get(link.span_id, -1))
                if edge is None:
                    left_out["links that cannot be read"] += 1
                else:
                    edges.append(edge)
    step = _number(above.attributes, semconv.STEP_INDEX)
    return PassFlow(step, calls, tuple(edges), {reason: count for reason, count in left_out.items() if count})


def _edge(holder: int, attributes: Mapping[str, Any], linked: int) -> FlowEdge | None:
    kind, origin = _text(attributes, semconv.FLOW_KIND), _text(attributes, semconv.FLOW_ORIGIN)
    tensor, into = _number(attributes, semconv.FLOW_TENSOR), _number(attributes, semconv.FLOW_INTO)
    if kind not in ("input", "output", "result") or tensor is None or origin not in ("module", "input", "earlier"):
        return None
    if origin == "module" and linked < 0 and kind != "result":
        # The span of the module is not in the file.
        origin = "earlier"
    source, target = (holder, -1) if kind == "result" else (linked, holder)
    via = attributes.get(semconv.FLOW_VIA)
    return FlowEdge(
        "output" if kind == "result" else kind, source, target, origin, _text(attributes, semconv.FLOW_SOURCE), tensor,
        -1 if into is None or kind == "result" else into, _shape(_text(attributes, semconv.FLOW_SHAPE)),
        _text(attributes, semconv.FLOW_DTYPE), _number(attributes, semconv.FLOW_BYTES),
        tuple(str(one) for one in via) if isinstance(via, tuple | list) else (),
    )  # fmt: skip


def _shape(text: str) -> tuple[int, ...] | None:
    if text == "scalar":
        return ()
    parts = text.split("x")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else None


def _text(attributes: Mapping[str, Any], key: str) -> str:
    value = attributes.get(key)
    return value if isinstance(value, str) else ""


def _number(attributes: Mapping[str, Any], key: str) -> int | None:
    value = attributes.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
