"""The analysis of edges, and what is drawn of them; on flows that are written down here."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ElementTree

import pytest

from inferspan.data_flow import DataFlow
from inferspan.records import FlowCall, FlowEdge, PassFlow


def _edge(source: int, target: int, tensor: int, *, into: int = -1, kind: str = "input", via: tuple[str, ...] = (), name: str = "m") -> FlowEdge:
    origin = "module" if source >= 0 else "input"
    return FlowEdge(kind, source, target, origin, name, tensor, into, (2, 3), "float32", 24, via)


def _chain(count: int) -> PassFlow:
    """A chain of modules, of which the last also takes the output of the first."""
    calls = tuple(FlowCall(number, -1, f"layers.{number}", "Layer") for number in range(count))
    edges = [_edge(-1, 0, 0, name="x"), *(_edge(n, n + 1, n + 1, name=f"layers.{n}") for n in range(count - 1))]
    return PassFlow(None, calls, (*edges, _edge(0, count - 1, 1, name="layers.0")), {})


def test_only_edges_past_others_skip() -> None:
    """Of a chain with one connection from its begin to its end that one skips."""
    flow = DataFlow(_chain(6))
    assert [(edge.producer, edge.consumer) for edge in flow if edge.skip] == [("layers.0", "layers.5")]


def test_skips_are_those_of_a_search() -> None:
    """On random graphs: an edge skips if its target can be reached from its source through another module."""
    for seed in range(40):
        draw = random.Random(seed)
        count = draw.randrange(2, 14)
        pairs = sorted({tuple(sorted(draw.sample(range(count), 2))) for _ in range(2 * count)})
        calls = tuple(FlowCall(number, -1, str(number), "Layer") for number in range(count))
        flow = DataFlow(PassFlow(None, calls, tuple(_edge(one, other, one, name=str(one)) for one, other in pairs), {}))

        def reaches(source: int, target: int, pairs: list[tuple[int, ...]] = pairs) -> bool:
            return source == target or any(reaches(other, target) for one, other in pairs if one == source)

        expected = [
            any(one == source and other != target and reaches(other, target) for one, other in pairs) for source, target in pairs
        ]
        assert [edge.skip for edge in flow] == expected, seed


def _nested() -> PassFlow:
    """``a`` gives to ``box``, in which ``b`` takes it; ``box`` returns what ``b`` has made, and ``c`` takes that."""
    calls = (FlowCall(0, -1, "a", "Linear"), FlowCall(1, -1, "box", "Box"), FlowCall(2, 1, "box.b", "Linear"), FlowCall(3, -1, "c", "Linear"))
    edges = (
        _edge(-1, 0, 0, name="x"), _edge(0, 1, 1, name="a"), _edge(0, 2, 1, name="a"),
        _edge(2, 1, 2, into=3, kind="output", name="box.b"), _edge(1, 3, 3, name="box"), _edge(3, -1, 4, kind="output", name="c"),
    )  # fmt: skip
    return PassFlow(2, calls, edges, {"edges": 3}, ("a note",))


def test_a_picture_joins_who_makes_and_who_uses_a_tensor() -> None:
    """Containers that only pass tensors on are no boxes; ignored ones are one box each."""
    flow = DataFlow(_nested(), "model")
    picture = flow.picture()
    paths = {box.id: box.path for box in picture.boxes}
    assert [(paths[link.source], paths[link.target]) for link in picture.links] == [("x", "a"), ("a", "box.b"), ("box.b", "c"), ("c", "result")]
    collapsed = flow.picture(ignore=["Box"])
    assert [(box.path, box.kind) for box in collapsed.boxes] == [
        ("x", "input"), ("a", "module"), ("box", "ignored"), ("c", "module"), ("result", "output"),
    ]  # fmt: skip
    for patterns in (["box"], ["b*x"], ["re:bo."]):
        assert flow.picture(ignore=patterns).boxes == collapsed.boxes, patterns
    assert {box.path for box in flow.picture(depth=1).boxes} == {"x", "a", "box", "c", "result"}


def test_wrong_arguments_of_a_picture() -> None:
    """They are errors that name the argument."""
    flow = DataFlow(_nested())
    with pytest.raises(ValueError, match="no regular expression"):
        flow.picture(ignore=["re:("])
    with pytest.raises(ValueError, match="depth is 1 or more"):
        flow.picture(depth=0)


def test_text_and_json() -> None:
    """One line for each edge to who uses it; everything in the JSON."""
    flow = DataFlow(_nested(), "model")
    assert str(flow).splitlines() == [
        "data flow of 4 module calls, 4 edges in step 2",
        "  x (input) -> a: 2x3 float32, 24 B",
        "  a -> box.b: 2x3 float32, 24 B",
        "  box -> c: 2x3 float32, 24 B",
        "  c -> the model's result: 2x3 float32, 24 B",
        "left out: 3 edges",
        "a note",
    ]
    read = json.loads(flow.to_json())
    assert len(read["edges"]) == 6
    assert read["modules"][2] == {"path": "box.b", "class": "Linear", "call": 1, "inside": "box"}
    assert (read["step"], read["left_out"], read["notes"]) == (2, {"edges": 3}, ["a note"])


def test_names_are_escaped() -> None:
    """Names of a model cannot end a string or an element."""
    name = 'a"</title><script>\\'
    flow = DataFlow(PassFlow(None, (FlowCall(0, -1, name, name),), (_edge(-1, 0, 0, name=name),), {}), name)
    ElementTree.fromstring(flow.to_svg())
    assert "<script>" not in flow.to_svg()
    assert '\\"' in flow.to_dot()


def test_a_large_flow_is_drawn_less_deep() -> None:
    """A picture has at most some 300 boxes, if containers can stand for what is in them; equal layers are one frame."""
    calls, edges = [FlowCall(0, -1, "top", "Top")], []
    before = -1
    for outer in range(4):
        box = len(calls)
        calls.append(FlowCall(box, 0, f"top.{'abcd'[outer]}", "Box"))
        for inner in range(200):
            number = len(calls)
            calls.append(FlowCall(number, box, f"{calls[box].name}.part{inner}", f"Part{inner}"))
            edges.append(_edge(before, number, number, name="x"))
            before = number
    flow = DataFlow(PassFlow(None, tuple(calls), tuple(edges), {}))
    assert len(flow.picture().boxes) == 5
    assert len(flow.picture(depth=5).boxes) == 801
    equal = DataFlow(_chain(50)).picture()
    assert len(equal.frames) < 6


def test_an_empty_flow_can_be_drawn() -> None:
    """It has a title and nothing else."""
    flow = DataFlow(None, "model", ["nothing"])
    ElementTree.fromstring(flow.to_svg())
    assert flow.to_dot().startswith("digraph")
    assert str(flow) == "data flow of 0 module calls, 0 edges\nnothing"
