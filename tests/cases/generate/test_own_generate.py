"""Classes with a ``generate()`` of their own around that of transformers: tokens are those that its loop was given and has chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases.telemetry import Telemetry

IDS = torch.tensor([[5, 6, 7, 8]])
EXACTLY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
SIZES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def _llama(kind: str = "LlamaForCausalLM") -> Any:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, kind)(transformers.LlamaConfig(**SIZES)).eval()


def _class(generate: Callable[..., Any]) -> Any:
    """A language model of a class with this ``generate()``, which is given that of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    class Own(LlamaForCausalLM):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return generate(super().generate, *args, **kwargs)

    torch.manual_seed(0)
    config: Any = LlamaConfig
    return Own(config(**SIZES)).eval()


def _with_system_prompt(base: Any, ids: Tensor, **options: Any) -> Any:
    return base(torch.cat([torch.full((len(ids), 3), 9), ids], 1), **options)


def _of_text(base: Any, text: str, **options: Any) -> Any:
    return base(torch.tensor([[ord(letter) for letter in text]]), **options)


def _under_another_name(base: Any, tokens: Tensor, **options: Any) -> Any:
    return base(tokens, attention_mask=(tokens != 0).long(), **options)


def _prompt_cut_off(base: Any, ids: Tensor, **options: Any) -> Any:
    return base(ids, **options)[:, ids.shape[1] :]


def _twice(base: Any, ids: Tensor, **options: Any) -> Any:
    return base(base(ids, **options), **options)


def _again_after_a_failure(base: Any, ids: Tensor, **options: Any) -> Any:
    with pytest.raises(ValueError, match="max_new_tokens"):
        base(ids, max_new_tokens=-1)
    return base(ids, **options)


@pytest.mark.parametrize(
    ("generate", "given", "usage"),
    [
        (_with_system_prompt, {"ids": IDS}, (7, 5)),
        (_of_text, {"text": "hello"}, (5, 5)),
        (_under_another_name, {"tokens": torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]])}, (6, 10)),
        (_prompt_cut_off, {"ids": IDS}, (4, 5)),
        (_twice, {"ids": IDS}, (4, 10)),
        (_again_after_a_failure, {"ids": IDS}, (4, 5)),
    ],
)
def test_a_class_around_it(telemetry: Telemetry, generate: Callable[..., Any], given: dict[str, Any], usage: tuple[int, int]) -> None:
    """It may change the prompt, tokenize it, cut it off, and go on."""
    model = _class(generate)
    telemetry.instrument(model)
    model.generate(**given, **EXACTLY)
    telemetry.check()
    assert telemetry.usage() == [usage]


class Texts(nn.Module):
    """Generates for one text after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.lm = _llama()

    def generate(self, texts: list[str]) -> list[Tensor]:
        """The rows."""
        return [_of_text(self.lm.generate, text, **EXACTLY)[0] for text in texts]


def test_a_wrapper_around_several(telemetry: Telemetry) -> None:
    """The tokens of all of them."""
    model = Texts()
    telemetry.instrument(model)
    model.generate(["hello world", "abc"])
    telemetry.check()
    assert telemetry.usage() == [(14, 10)]


def _seamless() -> tuple[Any, dict[str, Any]]:
    from transformers import SeamlessM4Tv2Config, SeamlessM4Tv2ForTextToText

    config: Any = SeamlessM4Tv2Config
    model: Any = SeamlessM4Tv2ForTextToText(
        config(
            vocab_size=64, hidden_size=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=64, decoder_ffn_dim=64,
        )
    )  # fmt: skip
    model.generation_config.text_decoder_lang_to_code_id = {"eng": 11}
    return model, {"input_ids": IDS, "tgt_lang": "eng"}


def _blip() -> tuple[Any, dict[str, Any]]:
    from transformers import BlipConfig, BlipForQuestionAnswering

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 128, "encoder_hidden_size": 32, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2, "pad_token_id": 0}
    config: Any = BlipConfig
    model: Any = BlipForQuestionAnswering(config(vision_config={**sizes, "image_size": 16, "patch_size": 8}, text_config=text))
    question = torch.tensor([[1, 5, 6, 7, 8, 2]])
    return model, {"pixel_values": torch.randn(1, 3, 16, 16), "input_ids": question, "attention_mask": torch.ones_like(question)}


@pytest.mark.parametrize(("make", "prompt", "starts"), [(_seamless, 4, 2), (_blip, 6, 1)])
def test_models_of_transformers(telemetry: Telemetry, make: Callable[[], tuple[Any, dict[str, Any]]], prompt: int, starts: int) -> None:
    """A start of the decoder of several tokens is not generated, and is not what the caller asks."""
    torch.manual_seed(0)
    model, given = make()
    telemetry.instrument(model.eval())
    with torch.no_grad():
        rows = model.generate(**given, do_sample=False, max_new_tokens=5)
    telemetry.check()
    assert telemetry.usage() == [(prompt, rows.shape[1] - starts)]


@pytest.mark.parametrize("form", [torch.tensor, lambda ids: torch.tensor(ids[0]), list])
def test_end_tokens_in_a_tensor(telemetry: Telemetry, form: Callable[[list[int]], Any]) -> None:
    """They end rows as those of a list do."""
    model = _llama()
    rows = torch.cat([IDS, torch.tensor([[0, 0, 9, 10]])])
    options = {"do_sample": False, "max_new_tokens": 8, "attention_mask": (rows != 0).long()}
    with torch.no_grad():
        end = int(model.generate(rows, **options)[1, 6])
        telemetry.instrument(model)
        got = model.generate(rows, eos_token_id=form([end]), **options)
    telemetry.check()
    answers = [row.index(end) + 1 if end in row else len(row) for row in got[:, 4:].tolist()]
    assert telemetry.usage() == [(6, sum(answers))]


def test_beams_that_nothing_ends(telemetry: Telemetry) -> None:
    """Without an end token no token is filler, the one for padding neither."""
    model = _llama()
    with torch.no_grad():
        last = int(model.generate(IDS, num_beams=2, **EXACTLY)[0, -1])
        telemetry.instrument(model)
        model.generate(IDS, num_beams=2, pad_token_id=last, **EXACTLY)
    telemetry.check()
    assert telemetry.usage() == [(4, 5)]


def test_beams_that_end_on_the_token_for_padding(telemetry: Telemetry) -> None:
    """The model has chosen it, and an end token that none of them has is not what it fills rows with."""
    model = _llama()
    with torch.no_grad():
        last = int(model.generate(IDS, num_beams=2, **EXACTLY)[0, -1])
        telemetry.instrument(model)
        got = model.generate(IDS, num_beams=2, pad_token_id=last, eos_token_id=99, **EXACTLY)
    assert (int(got[0, -1]), 99 in got[0].tolist()) == (last, False)
    telemetry.check()
    assert telemetry.usage() == [(4, 5)]


def test_a_loop_of_the_callers_that_generates(telemetry: Telemetry) -> None:
    """A ``custom_generate`` may call ``generate()`` of the model: that is its loop."""

    def loop(model: Any, input_ids: Tensor, **given: Any) -> Any:
        return model.generate(input_ids, **EXACTLY)[:, input_ids.shape[1] :]

    model = _llama()
    telemetry.instrument(model)
    model.generate(IDS, custom_generate=loop, **EXACTLY)
    telemetry.check()
    assert (len(telemetry.requests(nested=None)), telemetry.usage()) == (1, [(4, 5)])
