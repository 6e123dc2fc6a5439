"""Distributed tensors: the local part is looked at in outputs, inputs and weights, and figures of outputs pass it over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from inferspan import semconv
from tests.cases.telemetry import Telemetry

tensors = pytest.importorskip("torch.distributed.tensor")
if not hasattr(tensors, "distribute_tensor"):  # private until torch 2.5
    tensors = pytest.importorskip("torch.distributed._tensor")
NAN = float("nan")


@pytest.fixture
def mesh() -> Iterator[Any]:
    """One process."""
    if distributed.is_initialized():
        pytest.skip("another test has a process group")
    module: Any = distributed
    distributed.init_process_group("gloo", store=module.HashStore(), rank=0, world_size=1)
    try:
        yield tensors.init_device_mesh("cpu", (1,)) if hasattr(tensors, "init_device_mesh") else distributed.device_mesh.init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


class _Distributes(nn.Module):
    """Returns a distributed tensor."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, hidden: Tensor) -> Any:
        return tensors.distribute_tensor(hidden, self.mesh, [tensors.Shard(0)])


class _Takes(nn.Module):
    """Is called with a distributed tensor, and has another as its weight."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensors.distribute_tensor(torch.tensor([1.0, NAN, 3.0, 4.0]), mesh, [tensors.Shard(0)]))

    def forward(self, hidden: Any) -> Tensor:
        plain: Tensor = hidden.to_local()
        return torch.nan_to_num(plain)


def test_the_local_part_is_looked_at(telemetry: Telemetry, mesh: Any) -> None:
    """Bad values are found where they are; the plain output has figures, the distributed one none."""
    model = nn.Sequential(_Distributes(mesh), _Takes(mesh))
    handle = telemetry.instrument(model, numerics="all", numerics_inputs=True, modules="all", output_stats=True)
    with torch.no_grad():
        model(torch.tensor([1.0, NAN]))
    verdict = handle.numerics()
    assert verdict.first is not None
    assert (verdict.first.module, verdict.first.nan, verdict.first.elements) == ("0", 1, 2)
    assert verdict.not_looked_at == {}
    assert verdict.inputs is not None
    assert [one.module for one in verdict.inputs.problematic_modules] == ["0", "1"]
    weights = handle.check_weights()
    assert [(bad.name, bad.nan, bad.elements) for bad in weights.problematic] == [("1.weight", 1, 4)]
    found = {(span.attributes or {})[semconv.MODULE_NAME]: semconv.OUTPUT_STAT_MEAN in (span.attributes or {}) for span in telemetry.modules()}
    assert found == {"0": False, "1": True}
    telemetry.check()
