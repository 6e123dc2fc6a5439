"""A small program with one request of each kind that a gateway treats differently; each says by its conversation id which it is.

Where telemetry goes is in the environment. Everything it makes is also written to the session file, so that nothing has to be said here.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

import inferspan
from tests.cases.models import llama, prompt

STEPS = 6


class Waits(LogitsProcessor):
    """Waits in each step as long as it is told, and fails in the last one if it has to."""

    def __init__(self, *seconds: float, fails: bool = False) -> None:
        self.seconds = seconds
        self.fails = fails
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Pass the scores through."""
        self.calls += 1
        time.sleep(self.seconds[min(self.calls, len(self.seconds)) - 1])
        if self.fails and self.calls == STEPS:
            raise ValueError("this one fails")
        return scores


CASES = {
    "plain-1": Waits(0.0),
    "plain-2": Waits(0.0),
    "failed": Waits(0.0, fails=True),
    "slow-first-token": Waits(0.8, 0.0),
    "long": Waits(0.5),
    "long-failed": Waits(0.0, 3.0, 0.0, fails=True),
    "forced": Waits(0.0),
    "non-finite": Waits(0.0),
}


def main(path: str) -> None:
    """One request after the other."""
    model = llama()
    greedy: dict[str, Any] = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False}
    model.generate(prompt(), **greedy)  # what happens only once is done
    handle = inferspan.instrument(model)
    for name, waits in CASES.items():
        if name == "non-finite":
            with torch.no_grad():
                model.lm_head.weight[0].fill_(float("nan"))
        keep: dict[str, Any] = {"inferspan.keep": True} if name == "forced" else {}
        with inferspan.context(conversation_id=name, **keep):
            try:
                model.generate(prompt(), **greedy, logits_processor=LogitsProcessorList([waits]))
            except ValueError:
                continue
    inferspan.flush()
    handle.uninstrument()
    Path(path).write_text(json.dumps({"cases": list(CASES)}))


if __name__ == "__main__":
    main(sys.argv[1])
