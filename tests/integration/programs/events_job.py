"""A program with events and decorators of its own, whose telemetry goes to the collector; writes down what it did."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import inferspan


@inferspan.event_on_return("checkpoint_loaded", lambda result, path: {"file": path, "tensors": len(result)})
@inferspan.stage("load", lambda result: {"app.tensors": len(result)})
def load(path: str) -> list[int]:
    """Load a checkpoint."""
    return [1, 2, 3]


@inferspan.diffusion_step()
def denoise(latents: torch.Tensor, step: int, timestep: float) -> torch.Tensor:
    """One step."""
    return latents * 0.9


@inferspan.session("video", tags={"mode": "t2v"})
@inferspan.model_parameters(lambda args, kwargs: {"model_name": "my-net", "parameters_count": 7, "model_type": "t2v"})
def run(model: Any) -> None:
    """The whole of it."""
    load("weights.pt")
    latents = torch.zeros(1, 2)
    for step in range(2):
        latents = denoise(latents, step, 1000.0 - 500 * step)
    model(latents)


def main(path: str) -> None:
    """An event on its own, and a session."""
    model = torch.nn.Linear(2, 2)
    with inferspan.instrument(model, model_name="small"):
        inferspan.event("started", odd={"a": 1})
        run(model)
        inferspan.flush()
    Path(path).write_text(json.dumps({"ok": True}))


if __name__ == "__main__":
    main(sys.argv[1])
