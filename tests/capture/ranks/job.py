"""One rank of a job that torchrun starts: asks models that are divided over the ranks, or are whole on each of them.

``torchrun --standalone --nproc-per-node 2 -m tests.capture.ranks.job FOLDER``; each rank writes a session file into the folder, in which the
name of a request's model is the way in which it was run.
"""

from __future__ import annotations

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

__all__ = ["REQUESTS"]

REQUESTS = 3


def _tp_plan(folder: Path) -> Any:
    """As transformers divides a model."""
    from transformers import LlamaForCausalLM

    if dist.get_rank() == 0:
        models.llama().save_pretrained(folder / "model")
    dist.barrier()
    return LlamaForCausalLM.from_pretrained(folder / "model", tp_plan="auto").eval()


def _mesh() -> Any:
    """As a program divides a model by itself."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = models.llama()
    plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer.mlp, init_device_mesh("cpu", (2,)), plan)
    return model


def _fsdp() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = models.llama()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model


def _ask(model: Any, rows: int = 1) -> None:
    with torch.no_grad():
        model.generate(models.prompt(rows, 6), max_new_tokens=4, min_new_tokens=4, do_sample=False)


def _pass_through(number: int) -> AbstractContextManager[Any]:
    return nullcontext()


def _run(kind: str, model: Any, around: Callable[[int], AbstractContextManager[Any]] = _pass_through, rows: int = 1, **settings: Any) -> Any:
    """Ask a model a few times, in what ``around`` gives for each request."""
    handle = inferspan.instrument(model, model_name=kind, modules="none", **settings)
    for number in range(REQUESTS):
        with around(number):
            _ask(model, rows)
        dist.barrier()
    handle.uninstrument()


def main(folder: Path) -> None:
    """Run each way."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inferspan.configure(session_file=str(folder / "rank{rank}.jsonl"))
    tracer = trace.get_tracer("service")

    def span(name: str, of: int) -> Callable[[int], AbstractContextManager[Any]]:
        return lambda number: tracer.start_as_current_span(name) if rank == of else nullcontext()

    def late(number: int) -> AbstractContextManager[Any]:
        if rank == 0:
            time.sleep(0.2)  # the other rank waits for it in the first collective
        return nullcontext()

    divided = _mesh()
    _run("mesh", divided)
    _run("late", divided, late)
    _run("served", divided, span("GET /chat", 0))
    _run("own span", divided, span("worker", 1))
    _run("separate", divided, ranks="separate")
    _run("tp_plan", _tp_plan(folder))
    _run("fsdp", _fsdp(), rows=rank + 1)
    _run("data", models.llama(), rows=rank + 1)
    _run("forced", _fsdp(), ranks="joined")

    paused = inferspan.instrument(divided, model_name="paused", modules="none")
    for number in range(REQUESTS):
        with paused.paused() if number == 1 and rank == 1 else nullcontext():
            _ask(divided)
        dist.barrier()
    inferspan.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
