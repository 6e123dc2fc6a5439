"""Two ranks of one job in one trace, started by torchrun or by Slurm.

    torchrun --standalone --nproc-per-node 2 app.py
    srun --ntasks 2 python app.py

Rank 0 opens the span of the job and gives its context to the others once, before the work.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as dist
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from service_model import load

import inferspan


def start() -> None:
    """Join the group: torchrun sets what it needs, Slurm sets other names."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
        dist.init_process_group("gloo", init_method=os.environ["INIT_METHOD"], rank=rank, world_size=ranks)


def work() -> None:
    """Answer prompts of this rank."""
    model, tokenizer = load()
    with inferspan.instrument(model, tokenizer):
        for number in range(2):
            inputs = tokenizer(f"rank {dist.get_rank()}, question {number}", return_tensors="pt")
            model.generate(**inputs, max_new_tokens=8, do_sample=False)


if __name__ == "__main__":
    start()
    inferspan.configure()
    carrier: dict[str, str] = {}
    tracer = trace.get_tracer("job")
    if dist.get_rank() == 0:
        with tracer.start_as_current_span("job"):
            propagate.inject(carrier)
            dist.broadcast_object_list([carrier], src=0)
            work()
    else:
        given = [carrier]
        dist.broadcast_object_list(given, src=0)
        token = otel_context.attach(propagate.extract(given[0]))
        work()
        otel_context.detach(token)
    inferspan.flush()
    dist.barrier()
    dist.destroy_process_group()
