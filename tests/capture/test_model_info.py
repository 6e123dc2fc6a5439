"""Facts of a model: what is known, and what is left out because it is not, or because it is private."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from torch import nn

from inferspan import semconv
from inferspan.capture.device.place import model_device
from inferspan.capture.model_info import model_info
from inferspan.settings import Settings
from tests.cases import models
from tests.matrix.wrappers import distributed, sharded


class Named(nn.Module):
    """A model with a configuration."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.config = SimpleNamespace(**config)


def _info(model: nn.Module, **settings: Any) -> Any:
    return model_info(model, Settings(**settings))


@pytest.mark.parametrize(
    ("path", "name", "revision"),
    [
        ("org/name", "org/name", None),
        ("gpt2", "gpt2", None),
        ("/home/someone/private/my-model", "my-model", None),
        ("C:\\Users\\someone\\my-model", "my-model", None),
        ("./checkpoints/run-7", "run-7", None),
        (
            "/cache/hub/models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567",
            "org/name",
            "0123456789abcdef0123456789abcdef01234567",
        ),
        ("", None, None),
        (None, None, None),
    ],
)
def test_name_without_the_path(path: str | None, name: str | None, revision: str | None) -> None:
    """A hub id is kept, of a local path only the last part."""
    info = _info(Named(_name_or_path=path))
    assert (info.name, info.attributes.get(semconv.MODEL_REVISION)) == (name, revision)
    assert "someone" not in str(info)


def test_llama() -> None:
    """Architecture, type, size, dtype, attention and device of a transformers model."""
    model = models.llama()
    info = _info(model)
    assert info.provider == "huggingface" and info.architecture == "LlamaForCausalLM"
    expected = {
        semconv.MODEL_ARCHITECTURE: "LlamaForCausalLM",
        semconv.MODEL_TYPE: "llama",
        semconv.MODEL_PARAMETERS: sum(parameter.numel() for parameter in model.parameters()),
        semconv.MODEL_DTYPE: "float32",
        semconv.MODEL_COMPILE_MODE: "none",
        semconv.DEVICE: "cpu",
        semconv.DEVICE_TYPE: "cpu",
    }
    assert {key: info.attributes.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("make", "taken"),
    [(models.llama, None), (models.llava, ["text", "image"]), (models.qwen2_audio, ["text", "audio"])],
)
def test_modalities_that_a_model_takes(make: Any, taken: list[str] | None) -> None:
    """A model that takes more than text says what, so that a request lacks a modality rather than having none of it."""
    assert _info(make()).attributes.get(semconv.MODEL_MODALITIES) == taken


def test_plain_module() -> None:
    """A module of the user's is named by its class; settings name it otherwise."""
    info = _info(nn.Linear(2, 2))
    assert (info.name, info.provider) == ("Linear", "pytorch")
    renamed = _info(nn.Linear(2, 2), model_name="mine", provider_name="me")
    assert (renamed.name, renamed.provider) == ("mine", "me")
    assert model_device(nn.ReLU()) is None


@pytest.mark.parametrize(
    ("config", "method", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq", 4),
        (SimpleNamespace(quant_method=SimpleNamespace(value="bitsandbytes"), _load_in_8bit=True), "bitsandbytes", 8),
        (SimpleNamespace(quant_method="fp8"), "fp8", None),
    ],
)
def test_quantized(config: Any, method: str, bits: int | None) -> None:
    """Method and bits come from the configuration; the number of parameters would be wrong and is left out."""
    attributes = _info(Named(quantization_config=config)).attributes
    assert attributes[semconv.MODEL_QUANTIZATION_METHOD] == method
    assert attributes.get(semconv.MODEL_QUANTIZATION_BITS) == bits
    assert semconv.MODEL_PARAMETERS not in attributes


def test_lazy_and_meta() -> None:
    """Weights without a shape yet have no number, weights on meta have; neither is read."""
    assert semconv.MODEL_PARAMETERS not in _info(nn.Sequential(nn.LazyLinear(2))).attributes
    meta = _info(nn.Linear(3, 2, device="meta", dtype=torch.bfloat16)).attributes
    assert (meta[semconv.MODEL_PARAMETERS], meta[semconv.MODEL_DTYPE], meta[semconv.DEVICE]) == (8, "bfloat16", "meta")


def test_wrappers_have_the_name_of_what_is_inside() -> None:
    """Wrappers for parallel work, compilation and adapters name the model in them."""
    model = models.llama()
    model.config._name_or_path = "org/tiny"
    want = model_info(model, Settings())
    for wrapped in (nn.DataParallel(model), torch.compile(nn.DataParallel(model))):
        info = model_info(wrapped, Settings())  # type: ignore[arg-type]
        assert (info.name, info.architecture, info.provider) == (want.name, want.architecture, want.provider)


def test_adapters_keep_the_architecture() -> None:
    """A PEFT model has the architecture of its base, and the name of its adapter."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(models.llama(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    info = model_info(model, Settings())
    assert info.architecture == "LlamaForCausalLM"
    assert info.attributes[semconv.ADAPTER] == "default"


@pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="FSDP2 of this torch needs a GPU")
def test_sharded_model_keeps_its_class() -> None:
    """FSDP2 makes a class of its own, which is no architecture."""
    with distributed():
        model = sharded(models.llama())
        assert type(model).__name__ != "LlamaForCausalLM"
        assert model_info(model, Settings()).architecture == "LlamaForCausalLM"
