"""A program that records requests with spans, metrics and content events to a session file, and says where that is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import inferspan


def main(truth: Path) -> None:
    """Generate with a tiny model, a failure included."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    session = truth.parent / "session.jsonl"
    model = LlamaForCausalLM(shape).eval()
    handle = inferspan.instrument(
        model, session_file=session, capture_content="SPAN_AND_EVENT", module_metric=True, entropy_metric=True, sampler_interval=1.0
    )
    for length in (4, 8):
        model.generate(torch.arange(length)[None], max_new_tokens=6, do_sample=False, pad_token_id=0)
    inferspan.flush()
    requests = handle.summary().requests
    truth.write_text(json.dumps({"session": str(session), "requests": requests}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
