"""Stages of each kind of multimodal model in each way: those that ran, with the shapes that went in and came out, and their tokens."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.cases.telemetry import Telemetry

from .marks import marked
from .pairs import STAGES, Outcome
from .plain import tensors
from .staged import STAGE_WAYS, STAGED, Staged, StageWay

WORDS = ("input_ids", "attention_mask")


def _given(kind: Staged, way: StageWay) -> dict[str, Any]:
    given = kind.given()
    if way.words:
        # The words are the last five positions.
        given = {name: value[:, -5:] for name, value in given.items() if name in WORDS}
    return {**given, **(kind.more() if way.name.startswith("`model") else {})}


def _shapes(value: Any) -> list[str]:
    return ["x".join(map(str, tensor.shape)) for tensor in tensors(value)][:8]


def _without_us(kind: Staged, way: StageWay) -> tuple[Any, list[tuple[str, str, list[str], list[str]]]]:
    """What is returned without inferspan, and each call of a stage: name, path, shapes in and out."""
    model = kind.make().eval()
    calls: list[tuple[str, str, list[str], list[str]]] = []

    def enter(path: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            calls.append((kind.stages[path], path, _shapes([*args, *kwargs.values()]), []))

        return hook

    def leave(path: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            next(call for call in reversed(calls) if call[1] == path)[3].extend(_shapes(output))

        return hook

    for path in kind.stages:
        module = model.get_submodule(path)
        module.register_forward_pre_hook(enter(path), with_kwargs=True)
        module.register_forward_hook(leave(path))
    return way.call(model, _given(kind, way)), calls


def _placeholders(kind: Staged, given: dict[str, Any]) -> int | None:
    """Positions of the prompt that stand for images or sound."""
    return None if kind.token is None else int((given["input_ids"] == kind.token).sum())


@pytest.mark.parametrize(("way", "kind", "outcome"), marked(STAGES))
def test_stages(telemetry: Telemetry, way: str, kind: str, outcome: Outcome) -> None:
    """There is a span for each call of a stage, with its shapes and its tokens, in every pass that runs it."""
    chosen, how = STAGED[kind], STAGE_WAYS[way]
    want, calls = _without_us(chosen, how)
    model, given = chosen.make().eval(), _given(chosen, how)
    how.prepare(model)
    telemetry.instrument(model, **how.settings)
    got = how.call(model, given)
    assert [torch.equal(mine, other) for mine, other in zip(tensors(got), tensors(want), strict=True)] == [True] * len(tensors(want))
    telemetry.check()
    (request,) = telemetry.roots()
    attributes: dict[str, Any] = dict(request.attributes or {})
    assert attributes.get(semconv.UNOBSERVED) == outcome.unobserved
    assert attributes[semconv.INPUT_MODALITIES] == (("text",) if how.words else chosen.modalities)
    spans: list[Any] = [span for span in telemetry.spans() if semconv.STAGE_NAME in (span.attributes or {})]
    if outcome.unobserved is not None:
        # What is compiled is missing, the others are there.
        calls = [call for call in calls if call[0] == semconv.STAGE_FUSION and not call[1].startswith("model.visual.")]
    found = [
        (
            span.name,
            span.attributes[semconv.MODULE_NAME],
            [*span.attributes.get(semconv.INPUT_SHAPES, ())],
            [*span.attributes.get(semconv.OUTPUT_SHAPES, ())],
        )
        for span in spans
    ]
    assert found == calls
    assert {span.attributes[semconv.STAGE_NAME] for span in spans} == {call[0] for call in calls}
    assert {span.attributes[semconv.STAGE_KIND] for span in spans} <= {"model"}
    assert {span.attributes[semconv.DEVICE] for span in spans} <= {"cpu"}
    tokens = _placeholders(chosen, given) or None
    assert {span.attributes.get(semconv.STAGE_TOKENS) for span in spans} <= {tokens}
    usage = attributes.get(semconv.IMAGE_INPUT_TOKENS) or attributes.get(semconv.AUDIO_INPUT_TOKENS)
    assert usage == (None if way.startswith("`model") else tokens)
    measured = sum(count for _, count in telemetry.metrics().get(semconv.M_STAGE_DURATION, []))
    assert measured == len(calls)


def test_kinds_have_what_they_say() -> None:
    """Each stage of the table is a module of its model."""
    for kind in STAGED.values():
        modules = dict(kind.make().named_modules())
        assert [path for path in kind.stages if path not in modules] == [], kind.name
        assert inspect.isfunction(kind.given), kind.name
