"""Programs that are slow for one reason each, really run and recorded.

A reason that takes time sleeps, so that other work on the machine does not decide. Each function takes the path of the session file to
write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from tests.cases import models
from tests.explain.recording import recorded

__all__ = ["PLANTED", "Recorder", "Sleeping", "blocks", "generate", "llama"]

Recorder = Callable[[Path], None]
NAP = 0.01


def llama(**changes: Any) -> Any:
    """A Llama of four layers."""
    return models.llama(**{"num_hidden_layers": 4, "max_position_embeddings": 4096, **changes})


def generate(model: Any, *, rows: int = 1, width: int = 8, tokens: int = 8, seed: int = 1, **options: Any) -> Tensor:
    """Greedy generation of a number of tokens without an end token."""
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": tokens, **options}
    found: Tensor = model.generate(models.prompt(rows, width, seed), **options)
    return found


class Sleeping(nn.Module):
    """A module that does what another one does, later."""

    def __init__(self, inner: nn.Module, seconds: float | Callable[..., float] = NAP) -> None:
        super().__init__()
        self.inner, self.nap = inner, seconds

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(self.nap(*args, **kwargs) if callable(self.nap) else self.nap)
        return self.inner(*args, **kwargs)


def blocks(count: int = 4, slow: int | None = None) -> nn.Module:
    """Equal blocks in a row, one of which may sleep."""

    class Block(nn.Module):
        def __init__(self, nap: float) -> None:
            super().__init__()
            self.linear, self.nap = nn.Linear(32, 32), nap

        def forward(self, x: Tensor) -> Tensor:
            if self.nap:
                time.sleep(self.nap)
            return torch.relu(self.linear(x))

    return nn.Sequential(*(Block(4 * NAP if number == slow else 0.0) for number in range(count))).eval()


def slow_layer(path: Path) -> None:
    """The MLP of one layer sleeps."""
    model = llama()
    model.model.layers[2].mlp = Sleeping(model.model.layers[2].mlp)
    with recorded(path, model):
        for _ in range(3):
            generate(model)


def slow_layer_of_two(path: Path) -> None:
    """A model of two layers: the MLP of one of them sleeps."""
    model = llama(num_hidden_layers=2)
    model.model.layers[1].mlp = Sleeping(model.model.layers[1].mlp, 2 * NAP)
    with recorded(path, model):
        for _ in range(3):
            generate(model)


def slow_attention(path: Path) -> None:
    """The attention of one layer sleeps."""
    model = llama()
    model.model.layers[1].self_attn = Sleeping(model.model.layers[1].self_attn)
    with recorded(path, model, modules="all"):
        for _ in range(2):
            generate(model)


def slow_block(path: Path) -> None:
    """One of equal blocks of a network sleeps."""
    model = blocks(slow=3)
    model(torch.ones(4, 32))  # the first product of a process may take longer than all naps
    with recorded(path, model, modules="all"):
        for _ in range(5):
            model(torch.ones(4, 32))


def _slow_last(path: Path, name: str, modules: str) -> None:
    model = nn.Sequential()
    model.embed, model.body = nn.Linear(8, 16), nn.Tanh()
    model.add_module(name, Sleeping(nn.Linear(16, 4), 5 * NAP))
    with recorded(path, model.eval(), modules=modules):
        for _ in range(5):
            model(torch.ones(4, 8))


def slow_head(path: Path) -> None:
    """The only module of its kind sleeps."""
    _slow_last(path, "head", "embed,body,head")


def slow_around_another(path: Path) -> None:
    """The only module of its kind sleeps itself, around the module that it calls."""
    _slow_last(path, "adapter", "all")


def padded_batch(path: Path) -> None:
    """One row is far longer than the others of its batch."""
    model = llama(hidden_size=128, intermediate_size=512)
    ids, mask = models.prompt(8, 700), torch.zeros(8, 700, dtype=torch.long)
    mask[0], mask[1:, -20:] = 1, 1
    with recorded(path, model):
        for _ in range(3):
            model.generate(ids, attention_mask=mask, max_new_tokens=2, do_sample=False, eos_token_id=None, pad_token_id=0)


def long_prompts(path: Path) -> None:
    """Prompts are long, answers short."""
    model = llama(hidden_size=128, intermediate_size=512)
    with recorded(path, model):
        for seed in range(3):
            generate(model, rows=2, width=1500, tokens=2, seed=seed)


def slow_prefill_of_long_prompts(path: Path) -> None:
    """The work that a token takes is planted: modules sleep for each position."""
    model = llama()
    for layer in model.model.layers:
        layer.mlp = Sleeping(layer.mlp, lambda x: x.shape[1] * 5e-5)
    with recorded(path, model):
        for seed in range(2):
            generate(model, width=600, tokens=3, seed=seed)


def slow_tokenizer(path: Path) -> None:
    """A stage of the program that tokenizes takes longer than the model."""
    model = llama()
    with recorded(path, model):
        for _ in range(3):
            with inferspan.stage("tokenize"):
                time.sleep(0.5)
            generate(model)


def slow_retrieval(path: Path) -> None:
    """Another stage does, around the request."""
    model = llama()
    with recorded(path, model):
        for _ in range(2):
            with inferspan.stage("answer"), inferspan.stage("retrieve documents"):
                time.sleep(0.6)
            generate(model)


def slow_processor(path: Path) -> None:
    """A logits processor sleeps for each token."""
    from transformers import LogitsProcessor, LogitsProcessorList

    class Slow(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            time.sleep(4 * NAP)
            return scores

    model = llama()
    with recorded(path, model):
        for _ in range(2):
            generate(model, logits_processor=LogitsProcessorList([Slow()]))


def slow_streamer(path: Path) -> None:
    """What takes the tokens sleeps for each."""

    class Slow:
        def put(self, value: Any) -> None:
            time.sleep(4 * NAP)

        def end(self) -> None:
            pass

    model = llama()
    with recorded(path, model):
        for _ in range(2):
            generate(model, streamer=Slow())


def slow_criterion(path: Path) -> None:
    """A stopping criterion sleeps for each token."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Slow(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            time.sleep(4 * NAP)
            return torch.zeros(len(input_ids), dtype=torch.bool)

    model = llama()
    with recorded(path, model):
        for _ in range(2):
            generate(model, stopping_criteria=StoppingCriteriaList([Slow()]))


def growing_cache(path: Path) -> None:
    """Attention of all layers takes longer with each position of the cache."""

    def nap(*args: Any, **kwargs: Any) -> float:
        cache: Any = kwargs.get("cache", kwargs.get("past_key_values"))  # the second name is that of older versions of transformers
        return float(cache.get_seq_length(3)) * 3e-4

    model = llama()
    for layer in model.model.layers:
        layer.self_attn = Sleeping(layer.self_attn, nap)
    with recorded(path, model):
        generate(model, tokens=100)


def full_batch(path: Path) -> None:
    """Requests of continuous batching wait: the cache holds few of them."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = llama()
    for layer in model.model.layers:
        layer.mlp = Sleeping(layer.mlp, NAP / 10)
    loop = ContinuousBatchingConfig(num_blocks=4, page_size=16, max_batch_tokens=8)
    options = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0)
    prompts = [[5 + number, 6, 7, 8] for number in range(24)]
    with recorded(path, model):
        model.generate_batch(prompts, generation_config=options, continuous_batching_config=loop, progress_bar=False)


class _Far(Mapping[str, Any]):
    """Weights that take their time to come."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = {name: value.clone() for name, value in weights.items()}

    def __getitem__(self, name: str) -> Any:
        time.sleep(NAP / 2)
        return self._weights[name]

    def __iter__(self) -> Any:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def offloaded_weights(path: Path) -> None:
    """Weights are moved in for each pass."""
    accelerate: Any = pytest.importorskip("accelerate")
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).eval()
    accelerate.hooks.attach_align_device_hook(
        model, execution_device=torch.device("cpu"), offload=True, weights_map=_Far(model.state_dict())
    )
    with recorded(path, model, modules="none"):
        for _ in range(3):
            model(torch.ones(2, 8))


def changing_shapes(path: Path) -> None:
    """Each new length is compiled anew."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    compiled = torch.compile(model, backend=_slow_backend, dynamic=False)
    with recorded(path, model, modules="none"), torch.no_grad():
        for width in (1, 2, 3, 4, 2, 3, 4, 4, 4):
            compiled(torch.ones(width + 1, 8))
    torch._dynamo.reset()


def changing_flags(path: Path) -> None:
    """A flag of the model on which a guard sits changes from call to call."""
    torch._dynamo.reset()

    class Flagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(8, 8), 1

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale

    model = Flagged().eval()
    compiled = torch.compile(model, backend=_slow_backend, dynamic=False)
    with recorded(path, model, modules="none"), torch.no_grad():
        for scale in (1, 2, 3, 4, 1, 2, 3, 4):
            model.scale = scale
            compiled(torch.ones(2, 8))
    torch._dynamo.reset()


def _slow_backend(graph: Any, inputs: Any) -> Any:
    """Compiles in the time that a real compiler takes at least, and needs none."""
    time.sleep(0.2)
    return graph.forward


def uneven_answers(path: Path) -> None:
    """All rows of a batch but one end after two tokens."""
    from transformers import LogitsProcessor, LogitsProcessorList

    class Ends(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            scores = scores.clone()
            scores[0, 2] = -1e9
            if input_ids.shape[1] >= 10:
                scores[1:, 2] = 1e9
            return scores

    model = llama()
    for layer in model.model.layers:
        layer.mlp = Sleeping(layer.mlp, NAP / 5)
    with recorded(path, model):
        for _ in range(2):
            generate(model, rows=4, tokens=24, eos_token_id=2, logits_processor=LogitsProcessorList([Ends()]))


def long_answers(path: Path) -> None:
    """Two requests of twelve have far longer answers."""
    model = llama(num_hidden_layers=2)
    for layer in model.model.layers:
        layer.mlp = Sleeping(layer.mlp, NAP / 5)
    with recorded(path, model, modules="none"):
        for number in range(12):
            generate(model, tokens=60 if number in (4, 8) else 4, seed=number)


def large_inputs(path: Path) -> None:
    """Two passes of twelve have far larger inputs."""
    model = Sleeping(nn.Linear(4, 4), lambda x: len(x) * 1e-3).eval()
    with recorded(path, model, modules="none"):
        for number in range(12):
            model(torch.ones(200 if number in (5, 9) else 10, 4))


def useless_drafts(path: Path) -> None:
    """A draft model drafts what the model does not choose, and takes its time for it."""
    model, draft = llama(seed=0), llama(seed=7)
    for layer in draft.model.layers:
        layer.mlp = Sleeping(layer.mlp, NAP / 2)
    with recorded(path, model, draft):
        for _ in range(2):
            generate(model, tokens=8, assistant_model=draft)


def dear_telemetry(path: Path) -> None:
    """All modules of a tiny model are looked at in every step, with all figures."""
    model = llama(num_hidden_layers=8)
    with recorded(path, model, modules="all", every_step=True, output_stats=True, input_stats=True, span_hard_cap=200_000, numerics="all"):
        for _ in range(3):
            generate(model, tokens=40)


def slow_vision(path: Path) -> None:
    """The vision encoder takes longer than the language model."""
    model = models.llava()
    tower = model.model.vision_tower
    original = tower.forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.6)
        return original(*args, **kwargs)

    tower.forward = slow
    ids = models.prompt(1, 8)
    ids[0, 1:5] = 63
    with recorded(path, model):
        for _ in range(2):
            model.generate(ids, pixel_values=torch.ones(1, 3, 8, 8), max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)


PLANTED: Mapping[str, tuple[Recorder, str]] = {
    "one MLP": (slow_layer, "slow_module"),
    "one MLP of two": (slow_layer_of_two, "slow_module"),
    "one attention": (slow_attention, "slow_module"),
    "one block of a network": (slow_block, "slow_module"),
    "a module without equals": (slow_head, "slow_module"),
    "a module around another": (slow_around_another, "slow_module"),
    "padding": (padded_batch, "padding"),
    "long prompts": (long_prompts, "long_prefill"),
    "dear prompt tokens": (slow_prefill_of_long_prompts, "long_prefill"),
    "the tokenizer": (slow_tokenizer, "tokenizer"),
    "another stage": (slow_retrieval, "slow_stage"),
    "a logits processor": (slow_processor, "outside_steps"),
    "a streamer": (slow_streamer, "outside_steps"),
    "a stopping criterion": (slow_criterion, "outside_steps"),
    "a growing cache": (growing_cache, "kv_growth"),
    "a full batch": (full_batch, "queue_time"),
    "offloaded weights": (offloaded_weights, "offload_stall"),
    "changing shapes": (changing_shapes, "recompilation"),
    "changing flags": (changing_flags, "recompilation"),
    "uneven answers": (uneven_answers, "uneven_lengths"),
    "long answers": (long_answers, "straggler"),
    "large inputs": (large_inputs, "straggler"),
    "useless drafts": (useless_drafts, "draft_rejected"),
    "dear telemetry": (dear_telemetry, "telemetry"),
    "a vision encoder": (slow_vision, "slow_encoder"),
}
"""Program -> what records it, and the rule that has to come first."""
