"""A program whose model says one thing over and over, so that its output has findings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import inferspan
from tests.cases.models import llama, prompt


def main(path: str) -> None:
    """Generate once, of two prompts."""
    model = llama(eos_token_id=None)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[7] = 1000 * model.model.norm.weight
        model.lm_head.weight[9] = -model.lm_head.weight[7]
    inferspan.instrument(model, model_name="looping", thresholds={"confidence": 0.0})
    output = model.generate(prompt(2), max_new_tokens=40, do_sample=False)
    Path(path).write_text(json.dumps({"sequences": output[:, 6:].tolist()}))


if __name__ == "__main__":
    main(sys.argv[1])
