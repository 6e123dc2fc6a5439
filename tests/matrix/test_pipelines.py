"""Pipelines of transformers: results as without us, one request for each call or item, with the sums of what ran."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from inferspan import semconv, zero_code
from tests.cases.telemetry import Telemetry

from .marks import marked
from .pairs import CALLED, CALLED_UNCHANGED, Outcome
from .pictured import TASKS
from .pipelines import CALLS


def _run(kind: str, way: str, pipeline: Any) -> list[Any]:
    task = TASKS[kind]
    torch.manual_seed(1)
    return CALLS[way].call(pipeline, task.inputs(), dict(task.options))


def _rows(args: Any, kwargs: Any) -> int:
    """Rows of a pass: of the first tensor that went in, texts before pictures."""
    given = {**kwargs, **{str(number): value for number, value in enumerate(args)}}
    tensors = [given[name] for name in ("input_ids", "pixel_values", "input_values", *given) if isinstance(given.get(name), torch.Tensor)]
    return int(tensors[0].shape[0])


def _without_us(kind: str, way: str) -> tuple[list[Any], list[int], list[Any]]:
    """The results without inferspan, the rows of each pass of the model, and what each ``generate()`` returned."""
    pipeline, rows, generated = TASKS[kind].pipeline(), [], []
    pipeline.model.register_forward_pre_hook(lambda _, args, kwargs: rows.append(_rows(args, kwargs)), with_kwargs=True)
    if TASKS[kind].generates:
        original = pipeline.model.generate

        def generate(*args: Any, **kwargs: Any) -> Any:
            generated.append(original(*args, **kwargs))
            return generated[-1]

        pipeline.model.generate = generate
    return _run(kind, way, pipeline), rows, generated


@pytest.mark.parametrize(("way", "kind", "outcome"), marked(CALLED))
def test_call(telemetry: Telemetry, way: str, kind: str, outcome: Outcome) -> None:
    """A call is one request, and so is each item of a stream, with the operation, the rows, passes and tokens of what ran in it."""
    wanted = _without_us(kind, way)
    pipeline = TASKS[kind].pipeline()
    telemetry.instrument(pipeline)
    _check(telemetry, _run(kind, way, pipeline), wanted, kind, way, outcome)


@pytest.mark.parametrize(("way", "kind", "outcome"), marked(CALLED_UNCHANGED))
def test_first_call_under_zero_code(telemetry: Telemetry, way: str, kind: str, outcome: Outcome) -> None:
    """The same of the first call of a pipeline that was built under zero code and that nothing else has instrumented."""
    wanted = _without_us(kind, way)
    options = {"nvml": False, "host": False, "allocator": False}
    zero_code.activate(options, tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider)
    try:
        got = _run(kind, way, TASKS[kind].pipeline())
    finally:
        zero_code.deactivate()
    _check(telemetry, got, wanted, kind, way, outcome)


def _plain(value: Any) -> Any:
    """A result as plain values that can be compared."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, torch.Tensor | numpy.ndarray):
        return str(value.dtype), value.tolist()
    return value.tobytes() if isinstance(value, Image.Image) else repr(value)


def _check(telemetry: Telemetry, got: list[Any], wanted: tuple[list[Any], list[int], list[Any]], kind: str, way: str, outcome: Outcome) -> None:
    task, (want, rows, generated) = TASKS[kind], wanted
    assert _plain(got) == _plain(want), "the output is another one"
    telemetry.check()
    found: list[dict[str, Any]] = [dict(span.attributes or {}) for span in telemetry.roots()]
    assert len(found) == (len(got) if CALLS[way].lazy else outcome.requests)
    assert [one.get(semconv.OPERATION_NAME) for one in found] == [task.operation] * len(found)
    assert [one[semconv.PIPELINE_TASK] for one in found] == [kind.partition(" (")[0]] * len(found)
    assert [one.get(semconv.UNOBSERVED) for one in found] == [outcome.unobserved] * len(found)
    if task.generates:
        assert sum(one[semconv.BATCH_SIZE] for one in found) == (1 if way == "one input" else 3)
        inside = telemetry.requests(nested=True)
        assert len(inside) == (len(generated) if task.nested or len(generated) != len(found) else 0)
    else:
        assert sum(one[semconv.FORWARD_PASSES] for one in found) == len(rows)
        assert sum(one[semconv.BATCH_SIZE] for one in found) == sum(rows)
    if task.generates and task.tokens:
        assert sum(one[semconv.OUTPUT_TOKENS] for one in found) == task.tokens * len(got)
        assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == task.tokens * len(got)
    if task.operation == "embeddings":
        assert [one[semconv.EMBEDDINGS_DIMENSION] for one in found] == [32] * len(found)
