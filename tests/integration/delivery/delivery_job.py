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

SHORT = 6
LONG = 530
"""More steps than are kept until a request ends: the first 512 are handed over while it runs."""
PAUSE = 3.5
"""How long a long request waits after that: its decision falls meanwhile."""


class Waits(LogitsProcessor):
    """Waits once, in the step that it is told, and fails in the last one if it has to."""

    def __init__(self, steps: int = SHORT, at: int = 0, seconds: float = 0.0, *, fails: bool = False) -> None:
        self.steps = steps
        self.at = at
        self.seconds = seconds
        self.fails = fails
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Pass the scores through."""
        self.calls += 1
        if self.calls == self.at:
            time.sleep(self.seconds)
        if self.fails and self.calls == self.steps:
            raise ValueError("this one fails")
        return scores


CASES = {
    "plain-1": Waits(),
    "plain-2": Waits(),
    "failed": Waits(fails=True),
    "slow-first-token": Waits(at=1, seconds=0.8),
    "long": Waits(LONG, LONG - 5, PAUSE, fails=True),
    "forced": Waits(),
    "non-finite": Waits(),
}


def main(path: str) -> None:
    """One request after the other."""
    model = llama(max_position_embeddings=2 * LONG)
    model.generate(prompt(), max_new_tokens=SHORT)  # what happens only once is done
    handle = inferspan.instrument(model)
    for name, waits in CASES.items():
        if name == "non-finite":
            with torch.no_grad():
                model.lm_head.weight[0].fill_(float("nan"))
        keep: dict[str, Any] = {"inferspan.keep": True} if name == "forced" else {}
        with inferspan.context(conversation_id=name, **keep):
            try:
                length: dict[str, Any] = {"max_new_tokens": waits.steps, "min_new_tokens": waits.steps}
                model.generate(prompt(), **length, do_sample=False, logits_processor=LogitsProcessorList([waits]))
            except ValueError:
                continue
    inferspan.flush()
    handle.uninstrument()
    Path(path).write_text(json.dumps({"cases": list(CASES)}))


if __name__ == "__main__":
    main(sys.argv[1])
