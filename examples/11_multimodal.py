"""A model that takes images: spans for its vision encoder and its projector, and how many tokens they put into the prompt."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

import inferspan
from inferspan.report.session import Span, read_session

IMAGE = 63


def load() -> Any:
    """A LLaVA with random weights, whose images become four tokens each."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    eyes = CLIPVisionConfig(image_size=8, patch_size=4, projection_dim=32, **sizes)
    words = LlamaConfig(vocab_size=64, max_position_embeddings=64, pad_token_id=0, eos_token_id=2, **sizes)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=eyes, text_config=words, image_token_index=IMAGE)).eval()


def show(span: Span, depth: int = 0) -> None:
    """Print a span and the phases, steps and stages below it."""
    facts = span.attributes
    line = "  " * depth + span.name
    if "inferspan.stage.name" in facts:
        line += f": {facts['inferspan.input.shapes'][0]} -> {facts['inferspan.output.shapes'][0]}, {facts['inferspan.stage.tokens']} tokens"
    print(line)
    for child in span.children:
        show(child, depth + 1)


model = load()
prompt = torch.tensor([[IMAGE] * 4 + [10, 11, 12]])
options: dict[str, Any] = {"max_new_tokens": 2, "do_sample": False, "pad_token_id": 0}
with inferspan.instrument(model, model_name="tiny-llava", modules="none", session_file="images.otlp.jsonl"):
    model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), pixel_values=torch.randn(1, 3, 8, 8), **options)
    model.generate(input_ids=prompt[:, 4:], attention_mask=torch.ones_like(prompt[:, 4:]), **options)

inferspan.flush()
for request in read_session("images.otlp.jsonl").requests:
    facts = request.span.attributes
    show(request.span)
    print(f"  input: {', '.join(facts['inferspan.input.modalities'])}; image tokens: {facts.get('gen_ai.usage.image.input_tokens', 'none')}")
