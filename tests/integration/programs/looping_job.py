"""A program whose model says one thing over and over, so that its output has findings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import inferspan


def main(path: str) -> None:
    """Generate once, of two prompts."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[7] = 1000 * model.model.norm.weight
        model.lm_head.weight[9] = -model.lm_head.weight[7]
    inferspan.instrument(model, model_name="looping", thresholds={"confidence": 0.0})
    output = model.generate(torch.randint(3, 64, (2, 6)), max_new_tokens=40, do_sample=False)
    Path(path).write_text(json.dumps({"sequences": output[:, 6:].tolist()}))


if __name__ == "__main__":
    main(sys.argv[1])
