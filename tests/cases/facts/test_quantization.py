"""Models that transformers loads quantized by bitsandbytes, where it is installed: outputs, tokens, and what is said of the model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

pytest.importorskip("bitsandbytes")


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    listener = Telemetry()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield listener
    listener.close()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A Llama whose layers are as wide as blocks of four-bit weights on a CPU."""
    torch.manual_seed(0)
    kind: Any = transformers.LlamaConfig
    config = kind(
        vocab_size=models.VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("options", "bits"),
    [({"load_in_8bit": True}, 8), ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}, 4)],
    ids=["LLM.int8", "nf4"],
)
def test_generate_of_a_quantized_model(telemetry: Telemetry, checkpoint: str, options: dict[str, Any], bits: int) -> None:
    """The tokens are those without telemetry; method and bits are said, and a number of parameters is not, as weights are packed."""
    configuration: Any = transformers.BitsAndBytesConfig
    kind: Any = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(checkpoint, quantization_config=configuration(**options), device_map="cpu")
    generation = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    want = model.generate(models.prompt(1, 5), **generation)
    telemetry.instrument(model)
    assert torch.equal(model.generate(models.prompt(1, 5), **generation), want)
    telemetry.check()
    request = telemetry.only()
    assert request[semconv.OUTPUT_TOKENS] == 4
    assert request[semconv.MODEL_QUANTIZATION_METHOD] == "bitsandbytes"
    assert request[semconv.MODEL_QUANTIZATION_BITS] == bits
    assert semconv.MODEL_PARAMETERS not in request
    assert semconv.UNOBSERVED not in request
