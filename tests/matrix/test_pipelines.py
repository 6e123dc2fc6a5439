"""Pipelines of transformers: results as without us, one request for each call or item, with the sums of what ran."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.cases.telemetry import Telemetry

from .marks import marked
from .pairs import CALLED, Outcome
from .pipelines import CALLS, PIPELINES


def _run(kind: str, way: str, pipeline: Any) -> list[Any]:
    task = PIPELINES[kind]
    torch.manual_seed(1)
    return CALLS[way].call(pipeline, task.inputs(), dict(task.options))


def _rows(args: Any, kwargs: Any) -> int:
    """Rows of a pass: of the first tensor that went in, texts before pictures."""
    given = {**kwargs, **{str(number): value for number, value in enumerate(args)}}
    tensors = [given[name] for name in ("input_ids", "pixel_values", "input_values", *given) if isinstance(given.get(name), torch.Tensor)]
    return int(tensors[0].shape[0])


def _without_us(kind: str, way: str) -> tuple[list[Any], list[int], list[Any]]:
    """The results without inferspan, the rows of each pass of the model, and what each ``generate()`` returned."""
    pipeline, rows, generated = PIPELINES[kind].pipeline(), [], []
    pipeline.model.register_forward_pre_hook(lambda _, args, kwargs: rows.append(_rows(args, kwargs)), with_kwargs=True)
    if PIPELINES[kind].generates:
        original = pipeline.model.generate

        def generate(*args: Any, **kwargs: Any) -> Any:
            generated.append(original(*args, **kwargs))
            return generated[-1]

        pipeline.model.generate = generate
    return _run(kind, way, pipeline), rows, generated


@pytest.mark.parametrize(("way", "kind", "outcome"), marked(CALLED))
def test_call(telemetry: Telemetry, way: str, kind: str, outcome: Outcome) -> None:
    """A call is one request, and so is each item of a stream, with the operation, the rows, passes and tokens of what ran in it."""
    want, rows, generated = _without_us(kind, way)
    task, pipeline = PIPELINES[kind], PIPELINES[kind].pipeline()
    telemetry.instrument(pipeline)
    got = _run(kind, way, pipeline)
    assert repr(got) == repr(want), "the output is another one"
    telemetry.check()
    found: list[dict[str, Any]] = [dict(span.attributes or {}) for span in telemetry.roots()]
    assert len(found) == (len(got) if CALLS[way].lazy else outcome.requests)
    assert [one.get(semconv.OPERATION_NAME) for one in found] == [task.operation] * len(found)
    assert [one[semconv.PIPELINE_TASK] for one in found] == [pipeline.task] * len(found)
    assert [one.get(semconv.UNOBSERVED) for one in found] == [outcome.unobserved] * len(found)
    if task.generates:
        assert sum(one[semconv.OUTPUT_TOKENS] for one in found) == 3 * len(got)
        assert sum(one[semconv.BATCH_SIZE] for one in found) == len(got)
        assert len(telemetry.requests(nested=True)) == (0 if len(generated) == len(found) else len(generated))
        assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == 3 * len(got)
    else:
        assert sum(one[semconv.FORWARD_PASSES] for one in found) == len(rows)
        assert sum(one[semconv.BATCH_SIZE] for one in found) == sum(rows)
    if task.operation == "embeddings":
        assert [one[semconv.EMBEDDINGS_DIMENSION] for one in found] == [32] * len(found)
