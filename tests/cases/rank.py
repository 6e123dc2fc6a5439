"""One rank of two on gloo, as a program: runs a model whole and in parts, and prints what its requests say, a line for each way.

``python -m tests.cases.rank RANK FOLDER``; the ranks meet over a file in the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import nn

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

__all__ = ["KINDS"]

RANKS = 2
NEW = 4


def _ddp(model: Any) -> Any:
    return nn.parallel.DistributedDataParallel(model).eval()


def _fsdp(model: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _tensor_parallel(model: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model.model.layers:
        parallelize_module(
            layer.mlp, mesh, {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        )
    return model


KINDS = {"DDP": _ddp, "FSDP2": _fsdp, "tensor parallel": _tensor_parallel}
if not hasattr(torch.distributed.fsdp, "fully_shard"):
    del KINDS["FSDP2"]  # torch before 2.6 has it for GPUs only


def _run(model: Any, ids: Any) -> Any:
    with torch.no_grad():
        if isinstance(model, nn.parallel.DistributedDataParallel):
            return model(input_ids=ids).logits
        return model.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)


def _one(kind: str, rank: int) -> None:
    # Each rank has other rows, as with data in parallel; parts of one tensor must see the same.
    ids = models.prompt(2, 6, seed=1 if kind == "tensor parallel" else rank + 1)
    whole = models.llama()
    want = whole(input_ids=ids).logits.detach() if kind == "DDP" else _run(whole, ids)
    model = KINDS[kind](models.llama())
    telemetry = Telemetry()
    telemetry.instrument(model, ranks="separate")  # spans of the other rank are in the other process
    got = _run(model, ids)
    telemetry.check()
    root = dict(telemetry.only(telemetry.roots()))
    print(
        json.dumps(
            {
                "kind": kind,
                "equal": bool(torch.allclose(got.float(), want.float(), atol=1e-5)),
                "requests": len(telemetry.roots()),
                "rows": root[semconv.BATCH_SIZE],
                "tokens": root.get(semconv.OUTPUT_TOKENS),
                "steps": len(telemetry.steps()),
                "modules": len(telemetry.modules()),
                "architecture": root[semconv.MODEL_ARCHITECTURE],
                "unobserved": root.get(semconv.UNOBSERVED),
                "rank": root.get(semconv.RANK),
            }
        )
    )
    telemetry.close()
    dist.barrier()


def main(rank: int, folder: str) -> None:
    """Run each way and print one JSON object for it."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for kind in KINDS:
        _one(kind, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
