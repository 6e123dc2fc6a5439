"""Two ranks of one job, each with a session file of its own, compared with each other.

    torchrun --standalone --nproc-per-node 2 examples/15_ranks.py && inferspan aggregate ranks/*.jsonl

Started with `python`, it does both. The ranks answer half of the prompts each (data parallel, gloo) and meet at a barrier after every batch;
rank 1 has to do without the cache, so it is the slow one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(os.environ.get("RANKS_FOLDER", "ranks"))


def work() -> None:
    """What each rank does."""
    import torch
    import torch.distributed as dist
    from models import load

    import inferspan

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, _ = load()
    prompts = torch.arange(1, 1 + 8 * 6).reshape(8, 6)[rank::2]
    with inferspan.instrument(model, session_file=str(FOLDER / "rank{rank}.jsonl")):
        for prompt in prompts:
            model.generate(prompt[None], max_new_tokens=12, do_sample=False, use_cache=rank == 0)
            dist.barrier()
    inferspan.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        work()
    else:
        FOLDER.mkdir(exist_ok=True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        subprocess.run([*launcher, __file__], check=True)
        subprocess.run([sys.executable, "-m", "inferspan", "aggregate", str(FOLDER), "-o", str(FOLDER / "all.jsonl")], check=True)
