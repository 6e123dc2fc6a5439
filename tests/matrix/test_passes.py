"""Plain forward passes of each kind of module in each way: outputs as without us, and one request that describes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.cases.telemetry import Telemetry

from .marks import marked
from .pairs import PLAIN, Outcome
from .plain import MODULES, PASSES, ready, tensors


def _without_us(kind: str, way: str) -> list[Any]:
    one = ready(MODULES[kind], PASSES[way])
    PASSES[way].after(one)
    torch.manual_seed(1)
    return tensors(PASSES[way].call(one))


@pytest.mark.parametrize(("way", "kind", "outcome"), marked(PLAIN))
def test_forward_pass(telemetry: Telemetry, caplog: pytest.LogCaptureFixture, way: str, kind: str, outcome: Outcome) -> None:
    """There is one request with the shapes of what came out, or none where the page says so; what is not seen is said."""
    for package in PASSES[way].needs:
        pytest.importorskip(package)
    with PASSES[way].around():
        _check(telemetry, caplog, way, kind, outcome)


def _check(telemetry: Telemetry, caplog: pytest.LogCaptureFixture, way: str, kind: str, outcome: Outcome) -> None:
    want = _without_us(kind, way)
    one = ready(MODULES[kind], PASSES[way])
    telemetry.instrument(one.model)
    PASSES[way].after(one)
    earlier = len(telemetry.forwards())  # tracing runs the module
    torch.manual_seed(1)
    got = tensors(PASSES[way].call(one))
    assert [torch.equal(mine, other) for mine, other in zip(got, want, strict=True)] == [True] * len(want)
    telemetry.check(complaints=outcome.warned)
    assert bool([line for line in caplog.records if line.name.startswith("inferspan")]) is outcome.warned
    found = telemetry.forwards()[earlier:]
    assert len(found) == outcome.requests
    assert all(span.parent is None for span in found)
    for span in found:
        attributes: dict[str, Any] = dict(span.attributes or {})
        shapes = ["x".join(map(str, tensor.shape)) or "scalar" for tensor in got]
        assert [*attributes[semconv.OUTPUT_SHAPES]] == shapes[:8]
        # Right or absent: not every program says which axis is the batch.
        assert attributes.get(semconv.BATCH_SIZE, MODULES[kind].rows) == MODULES[kind].rows
        assert attributes.get(semconv.ERROR_TYPE) is None
        assert attributes.get(semconv.UNOBSERVED) == outcome.unobserved
