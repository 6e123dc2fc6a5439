"""One rank of a job that torchrun starts: asks models that are divided over the ranks, or are whole on each of them.

``torchrun --standalone --nproc-per-node 2 -m tests.capture.ranks.job FOLDER``; each rank writes a session file into the folder, in which the
name of a request's model is the way in which it was run. ``RANKS_DEVICE=cuda`` runs it on GPUs, one a rank, with NCCL instead of gloo.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from opentelemetry import trace
from torch.distributed.device_mesh import init_device_mesh

import inferspan
from tests.cases import models

__all__ = ["DEVICE", "REQUESTS", "begin", "divided", "model_of_the_ranks", "run"]

REQUESTS = 3
DEVICE = os.environ.get("RANKS_DEVICE", "cpu")


def begin(folder: Path) -> int:
    """Join the job and name the session file; the rank."""
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    inferspan.configure(session_file=str(folder / "rank{rank}.jsonl"))
    return dist.get_rank()


def model_of_the_ranks(folder: Path) -> Any:
    """As transformers divides a model."""
    from transformers import LlamaForCausalLM

    if dist.get_rank() == 0:
        models.llama().save_pretrained(folder / "model")
    dist.barrier()
    return LlamaForCausalLM.from_pretrained(folder / "model", tp_plan="auto").eval()


def divided() -> Any:
    """As a program divides a model by itself."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = models.llama().to(DEVICE)
    plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer.mlp, init_device_mesh(DEVICE, (dist.get_world_size(),)), plan)
    return model


def _fsdp() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = models.llama().to(DEVICE)
    fully_shard(model, mesh=init_device_mesh(DEVICE, (dist.get_world_size(),)))
    return model


def _ask(model: Any, rows: int = 1) -> None:
    with torch.no_grad():
        model.generate(models.prompt(rows, 6).to(DEVICE), max_new_tokens=4, min_new_tokens=4, do_sample=False)


def _pass_through(number: int) -> AbstractContextManager[Any]:
    return nullcontext()


def run(
    kind: str,
    model: Any,
    around: Callable[[int], AbstractContextManager[Any]] = _pass_through,
    rows: int = 1,
    modules: str = "none",
    **settings: Any,
) -> None:
    """Ask a model a few times, in what ``around`` gives for each request."""
    handle = inferspan.instrument(model, model_name=kind, modules=modules, **settings)
    for number in range(REQUESTS):
        with around(number):
            _ask(model, rows)
        dist.barrier()
    handle.uninstrument()


def main(folder: Path) -> None:
    """Run each way."""
    rank = begin(folder)
    tracer = trace.get_tracer("service")

    def span(name: str, of: int) -> Callable[[int], AbstractContextManager[Any]]:
        return lambda number: tracer.start_as_current_span(name) if rank == of else nullcontext()

    def late(number: int) -> AbstractContextManager[Any]:
        if rank == 0:
            time.sleep(0.2)  # the other rank waits for it in the first collective
        return nullcontext()

    shared = divided()
    run("mesh", shared)
    run("late", shared, late)
    run("served", shared, span("GET /chat", 0))
    run("own span", shared, span("worker", 1))
    run("separate", shared, ranks="separate")
    run("tp_plan", model_of_the_ranks(folder))
    run("fsdp", _fsdp(), rows=rank + 1)
    run("data", models.llama().to(DEVICE), rows=rank + 1)
    run("forced", _fsdp(), ranks="joined")

    paused = inferspan.instrument(shared, model_name="paused", modules="none")
    for number in range(REQUESTS):
        with paused.paused() if number == 1 and rank == 1 else nullcontext():
            _ask(shared)
        dist.barrier()
    inferspan.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
