"""One rank of a job whose models have profiler windows while they wait for each other in collectives.

``torchrun --standalone --nproc-per-node 2 -m tests.capture.ranks.profiled_job FOLDER``, with ``RANKS_DEVICE=cuda`` on GPUs. In some ways the
first rank pauses inside of each pass, so that the others wait for it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import inferspan
from tests.capture.ranks.job import DEVICE, REQUESTS, begin, divided, model_of_the_ranks, run
from tests.cases import models

__all__ = ["PASSES", "PAUSE"]

PASSES = 2
"""Profiled ones of each way."""
PAUSE = 0.5
"""Seconds for which the first rank keeps the others waiting in a pass."""


def _pause(*_: Any) -> None:
    """A hook of a module that runs after a collective and before another one: all ranks come to it at the same time."""
    if dist.get_rank() == 0:
        time.sleep(PAUSE)


class _Summed(nn.Module):
    """A model that calls collectives by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sums over the ranks, twice."""
        x = self.first(x)
        dist.all_reduce(x)
        x = self.second(x)
        dist.all_reduce(x)
        return x


def _fsdp() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = models.llama().to(DEVICE)
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main(folder: Path) -> None:
    """Run each way."""
    begin(folder)
    window: dict[str, Any] = {"modules": "all", "profile_steps": PASSES}
    plain = _Summed().to(DEVICE)
    plain.second.register_forward_pre_hook(_pause)
    handle = inferspan.instrument(plain, model_name="plain", **window)
    for _ in range(REQUESTS):
        with torch.no_grad():
            plain(torch.ones(2, 8, device=DEVICE))
        dist.barrier()
    handle.uninstrument()
    mesh = divided()
    mesh.model.layers[1].register_forward_pre_hook(_pause)
    run("mesh", mesh, **window)
    run("tp_plan", model_of_the_ranks(folder), **window)
    run("fsdp", _fsdp(), **window)
    run("alone", models.llama().to(DEVICE), **window)
    inferspan.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
