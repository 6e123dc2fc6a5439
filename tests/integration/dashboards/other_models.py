"""What a service runs beside text generation: images, a picture with a prompt, continuous batching, experts, a load, a stage of its own.

In: a folder for files. Out: one round of requests at a time, whose telemetry goes where the environment says. Every model is tiny, with
random weights; what needs diffusers is left out where it is not installed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

import inferspan
from tests.capture.batching.loops import bounded, generate_batch
from tests.cases.models import llama, llava, prompt
from tests.matrix.kinds import GENERATING

__all__ = ["OtherModels"]

_BATCHED = 4
_FULL = {"num_blocks": 9, "allow_block_sharing": False, "safety_margin": 0.0}
"""A cache that does not hold all of them to their ends, so that some are preempted."""


class OtherModels:
    """Models that are served beside a language model.

    Args:
        folder: where a checkpoint and the files of a tokenizer are written.
    """

    def __init__(self, folder: Path) -> None:
        self._checkpoint = folder / "checkpoint"
        llama().save_pretrained(self._checkpoint)
        self._batched, self._seeing, self._experts = llama(seed=2), llava(), GENERATING["Mixtral (experts)"].make().eval()
        self._pipeline: Any = None
        if importlib.util.find_spec("diffusers") is not None:
            from tests.capture.diffusion.pipelines import images

            self._pipeline = images(folder)
        self._handles: list[Any] = [
            inferspan.instrument_loading(),
            inferspan.instrument(self._batched, model_name="tiny-batched"),
            inferspan.instrument(self._seeing, model_name="tiny-llava"),
            inferspan.instrument(self._experts, model_name="tiny-mixtral", routing=True),
        ]
        if self._pipeline is not None:
            self._handles.append(inferspan.instrument(self._pipeline, model_name="tiny-diffusion"))

    def serve(self) -> int:
        """One round. Returns how many requests were made."""
        LlamaForCausalLM.from_pretrained(self._checkpoint)
        prompts = [[3 + (number + row) % 60 for number in range(30)] for row in range(_BATCHED)]
        with inferspan.session("round"):
            with inferspan.stage("batch"):
                generate_batch(self._batched, prompts, loop=bounded(**_FULL), max_new_tokens=30)
            with inferspan.stage("look"), torch.no_grad():
                ids = torch.cat([torch.full((1, 4), 63), prompt(1, 5).clamp(max=59)], dim=1)
                given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(1, 3, 8, 8)}
                self._seeing.generate(**given, max_new_tokens=4, do_sample=False)
            self._experts.generate(prompt(2, 6), max_new_tokens=4, do_sample=False)
            if self._pipeline is not None:
                self._pipeline("a cat", num_inference_steps=3, output_type="np")
        return _BATCHED + 2 + (self._pipeline is not None)

    def close(self) -> None:
        """Take everything off."""
        for handle in reversed(self._handles):
            handle.uninstrument()
