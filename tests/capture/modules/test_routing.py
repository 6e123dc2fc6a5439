"""Experts: loads, imbalance, entropy and dropped tokens of each router call, against what its outputs give in float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan import semconv
from inferspan.settings import Settings, SettingsError
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.matrix.kinds import GENERATING, SIZES, TOKENS, _made

RETURNED = hasattr(importlib.import_module("transformers.models.mixtral.modeling_mixtral"), "MixtralTopKRouter")
needs_routers = pytest.mark.skipif(not RETURNED, reason="routers of transformers 4 do not return what they have chosen")
EXPERTS, CHOSEN = 4, 2
MOE: dict[str, Any] = {**SIZES, **TOKENS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": 16}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    torch.manual_seed(0)
    listener = Telemetry()
    yield listener
    listener.close()


def _kind(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: _made(f"{name}ForCausalLM", f"{name}Config", **{**MOE, **options})


def _switch() -> Any:
    return _made(
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", vocab_size=models.VOCABULARY, d_model=32, d_ff=48,
        d_kv=8, num_layers=2, num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_heads=4,
        num_experts=EXPERTS, expert_capacity=2, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip


KINDS: dict[str, Callable[[], Any]] = {
    "Mixtral": GENERATING["Mixtral (experts)"].make,
    "Qwen2-MoE": _kind("Qwen2Moe", num_experts=EXPERTS, shared_expert_intermediate_size=16, decoder_sparse_step=1),
    "Qwen3-MoE": _kind("Qwen3Moe", num_experts=EXPERTS, head_dim=8, decoder_sparse_step=1, mlp_only_layers=[]),
    "OLMoE": _kind("Olmoe", num_experts=EXPERTS),
    "DeepSeek-V3": _kind(
        "DeepseekV3", n_routed_experts=EXPERTS, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=0, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, num_key_value_heads=4,
    ),
    "GPT-OSS": _kind("GptOss", num_local_experts=EXPERTS, head_dim=8, sliding_window=8),
    "Switch": _switch,
}  # fmt: skip


@dataclass
class Choice:
    """What a router has returned."""

    logits: Tensor
    chosen: Tensor
    masked: bool


def _watched(model: Any) -> list[Choice]:
    """What the routers of a model return from now on, in order."""
    seen: list[Choice] = []

    def look(module: Any, args: Any, output: Any) -> None:
        masked = not output[0].is_floating_point()
        logits, chosen = (output[2], output[0]) if masked else (output[0], output[2])
        seen.append(Choice(logits.detach().clone(), chosen.clone(), masked))

    for name, module in model.named_modules():
        if name.endswith((".gate", ".router")) and not isinstance(module, torch.nn.Linear):
            module.register_forward_hook(look)
    return seen


def _expected(choice: Choice) -> dict[str, Any]:
    logits = choice.logits.reshape(-1, EXPERTS).double()
    if choice.masked:
        load = choice.chosen.reshape(-1, EXPERTS).sum(0).tolist()
    else:
        load = [int((choice.chosen == expert).sum()) for expert in range(EXPERTS)]
    probabilities = logits.softmax(-1)
    found = {
        semconv.EXPERTS_LOAD: tuple(load),
        semconv.EXPERTS_IMBALANCE: max(load) / (sum(load) / EXPERTS) if sum(load) else None,
        semconv.EXPERTS_ENTROPY: float(-(probabilities * probabilities.log()).sum(-1).mean()),
    }
    if choice.masked:
        found[semconv.EXPERTS_DROPPED] = len(logits) - sum(load)
    return {key: value for key, value in found.items() if value is not None}


def _routers(telemetry: Telemetry) -> list[dict[str, Any]]:
    return [attributes for span in telemetry.modules() if semconv.EXPERTS_LOAD in (attributes := dict(span.attributes or {}))]


def _generate(model: Any) -> Tensor:
    torch.manual_seed(0)
    result: Tensor = model.generate(models.prompt(2, 6), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    return result


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind == "Switch" else needs_routers) for kind in KINDS])
def test_values_are_those_of_the_router(telemetry: Telemetry, kind: str) -> None:
    """On every recorded step each router has a span with the loads that its output gives, and generation is as without us."""
    model = KINDS[kind]().eval()
    want = _generate(model)
    telemetry.instrument(model, routing=True, every_step=True)
    seen = _watched(model)
    assert torch.equal(_generate(model), want)
    telemetry.check()
    found = _routers(telemetry)
    assert len(found) == len(seen) > 0
    for attributes, choice in zip(found, seen, strict=True):
        expected = _expected(choice)
        assert attributes[semconv.EXPERTS_LOAD] == expected.pop(semconv.EXPERTS_LOAD)
        assert {key: attributes.get(key) for key in expected} == pytest.approx(expected, rel=1e-5)


@needs_routers
@pytest.mark.parametrize("modules", ["layers", "none", "all"])
def test_routers_are_shown_with_any_selection(telemetry: Telemetry, modules: str) -> None:
    """Whatever modules are chosen, routers are among them: two layers, prefill and steps 1 and 2 of 3."""
    model = KINDS["Mixtral"]().eval()
    telemetry.instrument(model, routing=True, modules=modules)
    _generate(model)
    telemetry.check()
    found = _routers(telemetry)
    assert [one[semconv.MODULE_LAYER_INDEX] for one in found] == [0, 1] * 3
    if modules == "none":
        assert len(telemetry.modules()) == len(found)


@needs_routers
def test_metric_has_a_value_for_each_recorded_call(telemetry: Telemetry) -> None:
    """The histogram of the imbalance has the values of the spans, by layer."""
    model = KINDS["Mixtral"]().eval()
    telemetry.instrument(model, routing=True)
    _generate(model)
    found = _routers(telemetry)
    for layer in (0, 1):
        values = [one[semconv.EXPERTS_IMBALANCE] for one in found if one[semconv.MODULE_LAYER_INDEX] == layer]
        labels = {semconv.MODULE_LAYER_INDEX.replace(".", "__"): layer}
        assert telemetry.metric_sum(semconv.M_EXPERTS_IMBALANCE, **labels) == pytest.approx(sum(values))


@needs_routers
def test_plain_forward_passes_have_routers_too(telemetry: Telemetry) -> None:
    """A plain pass records its routers like a step."""
    model = KINDS["OLMoE"]().eval()
    telemetry.instrument(model, routing=True, output_stats=True)
    seen = _watched(model)
    model(models.prompt(2, 6))
    found = _routers(telemetry)
    assert [one[semconv.EXPERTS_LOAD] for one in found] == [_expected(choice)[semconv.EXPERTS_LOAD] for choice in seen]
    assert any(semconv.OUTPUT_STAT_MEAN in (span.attributes or {}) for span in telemetry.modules())


def test_off_by_default(telemetry: Telemetry) -> None:
    """Without the setting there is no span of a router and no value."""
    model = KINDS["Mixtral"]().eval()
    telemetry.instrument(model)
    _generate(model)
    assert _routers(telemetry) == []
    assert semconv.M_EXPERTS_IMBALANCE not in telemetry.metrics()


def test_model_without_experts(telemetry: Telemetry) -> None:
    """On a model without experts the setting changes nothing."""
    model = models.llama()
    telemetry.instrument(model, routing=True)
    _generate(model)
    telemetry.check()
    assert _routers(telemetry) == []


def test_setting_from_the_environment() -> None:
    """``INFERSPAN_ROUTING`` turns it on; an argument that is no boolean is refused by name."""
    assert Settings.resolve(environ={"INFERSPAN_ROUTING": "true"}).routing is True
    with pytest.raises(SettingsError, match="routing"):
        Settings(routing="perhaps")  # type: ignore[arg-type]
