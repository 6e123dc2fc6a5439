"""Models whose modules do not add up have no figures, and others those that torch's ``FlopCounterMode`` counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.flop_counter import FlopCounterMode

from inferspan import semconv
from tests.cases.telemetry import Telemetry
from tests.roofline.tiny import MODELS

IDS = torch.randint(3, 60, (3, 7), generator=torch.Generator().manual_seed(0))
_SIZES: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def _flops(telemetry: Telemetry, model: Any, *inputs: Any, generate: Any = None) -> tuple[Any, int]:
    """Operations that the request's span says, and those that torch has counted."""
    telemetry.instrument(model)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(*inputs) if generate is None else model.generate(*inputs, **generate)
    telemetry.check()
    return (telemetry.roots()[0].attributes or {}).get(semconv.DEVICE_FLOPS), counted.get_total_flops()


class Tied(nn.Module):
    """Logits by a function from the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.linear(self.embedding(ids)) @ self.embedding.weight.T


class Scores(nn.Module):
    """A product of two projections, in a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of pairs."""
        return self._compare(self.one(hidden), self.other(hidden))

    def _compare(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.bmm(one, other.transpose(-1, -2))


class Plain(nn.Module):
    """A module inside has the name of a function of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """One product."""
        return self.linear(hidden)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Tied(), IDS % 10), (Scores(), torch.ones(2, 3, 4)), (nn.Sequential(nn.RNN(4, 1)), torch.ones(2, 3, 4))],
    ids=["tied weights", "in a method", "recurrent"],
)
def test_products_by_functions(telemetry: Telemetry, model: Any, inputs: torch.Tensor) -> None:
    """What a model multiplies outside of its modules is not known."""
    said, _ = _flops(telemetry, model, inputs)
    assert said is None


def test_module_with_the_name_of_a_function(telemetry: Telemetry) -> None:
    """It is a module all the same."""
    said, counted = _flops(telemetry, Plain(), torch.ones(2, 4))
    assert said == counted


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv1d(4, 4, 3), (4, 9)), (nn.Conv2d(4, 4, 3), (4, 9, 9)), (nn.ConvTranspose2d(4, 6, 3, stride=2), (4, 9, 9))],
    ids=["1 axis", "2 axes", "transposed"],
)
def test_convolution_without_rows(telemetry: Telemetry, layer: nn.Module, shape: tuple[int, ...]) -> None:
    """The axis of rows may be absent."""
    said, counted = _flops(telemetry, nn.Sequential(layer), torch.ones(shape))
    assert said == counted


def _made(name: str, config: str, **options: Any) -> Any:
    import transformers

    if not hasattr(transformers, config):
        pytest.skip(f"this release of transformers has no {name}")
    torch.manual_seed(0)
    made = getattr(transformers, config)(**{**_SIZES, **options})
    made._attn_implementation = "eager"
    return getattr(transformers, name)(made).eval()


@pytest.mark.parametrize(
    ("name", "config", "options"),
    [
        ("AlbertModel", "AlbertConfig", {"embedding_size": 32}),
        ("NystromformerModel", "NystromformerConfig", {"num_landmarks": 1, "segment_means_seq_len": 7}),
        ("LongformerModel", "LongformerConfig", {"attention_window": 4}),
    ],
    ids=["layers that run several times", "landmarks", "windows"],
)
def test_encoder_of_another_structure(telemetry: Telemetry, name: str, config: str, options: dict[str, Any]) -> None:
    """Its passes are not the sum over its modules."""
    model = _made(name, config, max_position_embeddings=64, **options)
    said, _ = _flops(telemetry, model, IDS)
    assert said is None


def test_layers_with_a_state(telemetry: Telemetry) -> None:
    """Layers of a gated delta rule have projections as attention has, and other products."""
    model = _made(
        "Qwen3NextModel", "Qwen3NextConfig", num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    said, _ = _flops(telemetry, model, IDS)
    assert said is None


def test_image_model_with_stages(telemetry: Telemetry) -> None:
    """Stages that see fewer positions than the first one are not taken for layers that see all patches."""
    import transformers

    options: dict[str, Any] = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
    model = transformers.PoolFormerModel(transformers.PoolFormerConfig(**options)).eval()
    telemetry.instrument(model, modules="none")
    with torch.no_grad():
        model(torch.ones(1, 3, 64, 64))
    telemetry.check()
    assert semconv.DEVICE_FLOPS not in (telemetry.roots()[0].attributes or {})


@pytest.mark.parametrize(("name", "config"), [("BertLMHeadModel", "BertConfig"), ("RobertaForCausalLM", "RobertaConfig")])
def test_head_of_two_layers(telemetry: Telemetry, name: str, config: str) -> None:
    """All layers of the head see the last position alone."""
    model = _made(name, config, is_decoder=True, max_position_embeddings=64)
    options = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    said, counted = _flops(telemetry, model, IDS, generate=options)
    assert said == counted


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("options", [{"num_beams": 2}, {"do_sample": True, "num_return_sequences": 3}], ids=["beams", "samples"])
def test_encoder_runs_once_for_a_row(telemetry: Telemetry, name: str, options: dict[str, Any]) -> None:
    """Rows are multiplied behind the encoder."""
    options = {"max_new_tokens": 4, "min_new_tokens": 4, **options}
    said, counted = _flops(telemetry, MODELS[name](), IDS, generate=options)
    assert said == counted


def _parametrized() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))).train()


class Dropped(nn.Module):
    """Weights with dropout."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Drop half of them."""
        return torch.dropout(weight, 0.5, True)


def _random() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4))
    parametrize.register_parametrization(model[0], "weight", Dropped())
    return model


@pytest.mark.parametrize(("make", "inputs"), [(_parametrized, torch.ones(1, 3, 8, 8)), (_random, torch.arange(4))], ids=["spectral norm", "dropout"])
def test_parametrizations_are_not_computed(telemetry: Telemetry, make: Any, inputs: torch.Tensor) -> None:
    """Reading a weight may draw random numbers, or change a buffer."""
    expected = make()(inputs)
    model = make()
    telemetry.instrument(model)
    assert torch.equal(model(inputs), expected)


_DECODE: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {"prompt_lookup_num_tokens": 3}),
        ("llama", {"guidance_scale": 1.5}),
        ("t5", {"encoder_outputs": None}),
    ],
    ids=["drafts", "guidance", "encoder that has run"],
)
def test_generation_with_other_passes(telemetry: Telemetry, name: str, options: dict[str, Any]) -> None:
    """Passes that are not told of, or that have run before, leave no figures."""
    from transformers.modeling_outputs import BaseModelOutput

    inputs: Any = (IDS[:1],)
    if name == "t5":
        inputs, options = (), {"encoder_outputs": BaseModelOutput(last_hidden_state=torch.ones(2, 5, 32))}
    said, _ = _flops(telemetry, MODELS[name](), *inputs, generate={**_DECODE, **options})
    assert said is None


def test_static_cache_larger_than_the_prompt(telemetry: Telemetry) -> None:
    """Layers with a window of fixed size give all of it."""
    options = {**_DECODE, "attention_mask": torch.ones(3, 4, dtype=torch.long), "cache_implementation": "static"}
    said, counted = _flops(telemetry, MODELS["mistral"](), IDS[:, :4], generate=options)
    assert said == counted


def test_plain_pass_that_continues_a_full_window(telemetry: Telemetry) -> None:
    """The length is what the layers have seen, where all of them have a window; without it there are no figures."""
    from transformers import DynamicCache

    model = MODELS["mistral"]()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(IDS, past_key_values=cache)
    telemetry.instrument(model)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(IDS[:, :2], past_key_values=cache)
    telemetry.check()
    assert (telemetry.roots()[0].attributes or {}).get(semconv.DEVICE_FLOPS) in (None, counted.get_total_flops())


def test_plain_pass_from_embeddings_of_an_encoder(telemetry: Telemetry) -> None:
    """Nothing tells them from the output of an encoder that has run before."""
    model = MODELS["t5"]()
    telemetry.instrument(model)
    with torch.no_grad():
        model(inputs_embeds=torch.ones(2, 5, 32), decoder_input_ids=IDS[:2, :3])
    telemetry.check()
    assert semconv.DEVICE_FLOPS not in (telemetry.roots()[0].attributes or {})


@pytest.mark.parametrize(("state", "known"), [("used", True), ("off", False), ("merged", False)])
def test_adapter(telemetry: Telemetry, state: str, known: bool) -> None:
    """An adapter that is used counts; what one that is switched off or merged leaves out is not known."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(MODELS["llama"](), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    if state == "off":
        model.base_model.disable_adapter_layers()
    elif state == "merged":
        model.merge_adapter()
    said, counted = _flops(telemetry, model, IDS)
    assert said == (counted if known else None)
