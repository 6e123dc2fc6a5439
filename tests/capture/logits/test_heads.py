"""Plain forward passes have statistics of logits where they choose a token or a class, and there of a real position."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IDS = torch.randint(4, 60, (3, 8), generator=torch.Generator().manual_seed(3))
LENGTHS = (6, 2, 5)
RIGHT = torch.tensor([[1] * length + [0] * (8 - length) for length in LENGTHS])


def _entropy(rows: Tensor) -> float:
    shares = rows.double().log_softmax(-1)
    return float(-(shares.exp() * shares).sum(-1).mean())


def _run(telemetry: Telemetry, model: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
    telemetry.instrument(model)
    with torch.no_grad():
        logits = model(*args, **kwargs).logits
    telemetry.check()
    return logits, telemetry.only(telemetry.forwards())


def _causal() -> Any:
    model = models.llama()
    model.lm_head.weight.data *= 20
    return model


@pytest.mark.parametrize("how", ["keyword", "positional", "by the padding id"])
def test_padding_on_the_right(telemetry: Telemetry, how: str) -> None:
    """Statistics are of the last real position of each row, however the mask was passed."""
    model = _causal()
    ids = IDS * RIGHT
    given = {"keyword": ((ids,), {"attention_mask": RIGHT}), "positional": ((ids, RIGHT), {}), "by the padding id": ((ids,), {})}
    args, kwargs = given[how]
    logits, attributes = _run(telemetry, model, *args, **kwargs)
    rows = torch.stack([logits[row, length - 1] for row, length in enumerate(LENGTHS)])
    assert attributes[semconv.LOGITS_ENTROPY] == pytest.approx(_entropy(rows), rel=1e-4)


def test_padding_on_the_left(telemetry: Telemetry) -> None:
    """The last position is real in every row."""
    mask = RIGHT.flip(1)
    logits, attributes = _run(telemetry, _causal(), input_ids=IDS * mask, attention_mask=mask)
    assert attributes[semconv.LOGITS_ENTROPY] == pytest.approx(_entropy(logits[:, -1]), rel=1e-4)


def test_real_positions_that_have_no_logits(telemetry: Telemetry) -> None:
    """Where only the last positions have logits and a row has none of its own there, nothing is said."""
    _, attributes = _run(telemetry, _causal(), input_ids=IDS * RIGHT, attention_mask=RIGHT, logits_to_keep=3)
    assert semconv.LOGITS_ENTROPY not in attributes


def test_a_decoder_that_is_padded_on_the_right(telemetry: Telemetry) -> None:
    """In an encoder-decoder the decoder's mask counts, not the encoder's."""
    options = {"attention_mask": RIGHT, "decoder_input_ids": IDS, "decoder_attention_mask": RIGHT.flip(0)}
    logits, attributes = _run(telemetry, models.t5(), input_ids=IDS * RIGHT, **options)
    rows = torch.stack([logits[row, length - 1] for row, length in enumerate(reversed(LENGTHS))])
    assert attributes[semconv.LOGITS_ENTROPY] == pytest.approx(_entropy(rows), rel=1e-4)


class Overwriting(nn.Module):
    """An encoder-decoder that puts another id in place of the labels that do not count."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.config = SimpleNamespace(is_encoder_decoder=True)
        self.logits = logits

    def can_generate(self) -> bool:
        """As transformers' models say it."""
        return True

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        labels[labels == -100] = 0
        return ModelOutput(logits=self.logits)


def test_labels_that_the_model_overwrites(telemetry: Telemetry) -> None:
    """The positions that count are those of the labels as they were given."""
    labels = torch.where(RIGHT.bool(), IDS, -100)
    logits, attributes = _run(telemetry, Overwriting(torch.randn(3, 8, 60)), input_ids=IDS, labels=labels)
    rows = torch.stack([logits[row, length - 1] for row, length in enumerate(LENGTHS)])
    assert attributes[semconv.LOGITS_ENTROPY] == pytest.approx(_entropy(rows), rel=1e-4)


def _classifier(**changes: Any) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    kind: Any = BertConfig
    return BertForSequenceClassification(kind(**SIZES, **changes)).eval()


def _labels_by_token() -> Any:
    from transformers import BertConfig, BertForTokenClassification

    kind: Any = BertConfig
    return BertForTokenClassification(kind(**SIZES, num_labels=5)).eval()


def _masked() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**SIZES)).eval()


@pytest.mark.parametrize(
    "make",
    [
        lambda: _classifier(num_labels=1),
        lambda: _classifier(num_labels=3, problem_type="regression"),
        lambda: _classifier(num_labels=3, problem_type="multi_label_classification"),
        _labels_by_token,
        _masked,
    ],
    ids=["one score", "several scores", "independent labels", "a label for each token", "masked tokens"],
)
def test_heads_that_choose_nothing(telemetry: Telemetry, make: Callable[[], Any]) -> None:
    """Their scores are no distribution of a choice, so nothing is said of one."""
    _, attributes = _run(telemetry, make(), input_ids=IDS)
    assert not [key for key in attributes if key.startswith("inferspan.logits")]


def test_a_class_is_chosen(telemetry: Telemetry) -> None:
    """The control: a sequence head of several classes has statistics, padded or not."""
    logits, attributes = _run(telemetry, _classifier(num_labels=4), input_ids=IDS, attention_mask=RIGHT)
    assert attributes[semconv.LOGITS_ENTROPY] == pytest.approx(_entropy(logits), rel=1e-4)


class _Detector(nn.Module):
    """Boxes of an image: classes for each of twenty queries."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 20 * 7)

    def forward(self, pixels: Tensor) -> Any:
        from transformers.modeling_outputs import CausalLMOutput

        return CausalLMOutput(logits=self.head(pixels.flatten(1)).view(-1, 20, 7))


def test_queries_of_a_detector(telemetry: Telemetry) -> None:
    """The last query is no more than any other."""
    _, attributes = _run(telemetry, _Detector(), torch.randn(2, 3, 4, 4))
    assert semconv.LOGITS_ENTROPY not in attributes


TINY: dict[str, Any] = {"vocab_size": 60, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SOUND: dict[str, Any] = {
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "tdnn_dim": (16, 16), "tdnn_kernel": (3, 3), "tdnn_dilation": (1, 1), "xvector_output_dim": 12,
}  # fmt: skip
PICTURES = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def _head(kind: str, config: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, kind)(getattr(transformers, config)(**options)).eval()


def _electra() -> Any:
    return _head("ElectraForPreTraining", "ElectraConfig", **TINY, embedding_size=24)


def _funnel() -> Any:
    sizes = {"vocab_size": 60, "d_model": 24, "n_head": 2, "d_head": 12, "d_inner": 32, "block_sizes": [1, 1], "num_decoder_layers": 1}
    return _head("FunnelForPreTraining", "FunnelConfig", **sizes)


class _Scores(nn.Module):
    """A score for each token of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(60, 4), nn.Linear(4, 1)

    def forward(self, input_ids: Tensor) -> Any:
        return ModelOutput(logits=self.head(self.embedding(input_ids))[..., 0])


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (_electra, {"input_ids": IDS}),
        (_electra, {"inputs_embeds": torch.randn(3, 8, 24)}),
        (_electra, {"input_ids": IDS[:, :2]}),
        (_funnel, {"input_ids": IDS}),
        (
            lambda: _head("TapasForQuestionAnswering", "TapasConfig", **TINY),
            {"input_ids": IDS[:, :2], "token_type_ids": torch.zeros(3, 2, 7, dtype=torch.long)},
        ),
        (_Scores, {"input_ids": IDS}),
    ],
    ids=["ELECTRA", "ELECTRA, embeddings", "ELECTRA, as many tokens as labels", "Funnel", "TAPAS, as many tokens as labels", "own"],
)
def test_a_score_for_each_token(telemetry: Telemetry, make: Callable[[], Any], given: dict[str, Any]) -> None:
    """A score for each position is no choice between positions, even if there are as many of them as the configuration has labels."""
    logits, attributes = _run(telemetry, make(), **given)
    assert logits.dim() == 2
    assert not [key for key in attributes if key.startswith("inferspan.logits")]


def test_as_many_classes_as_tokens(telemetry: Telemetry) -> None:
    """The control: where the configuration has that many labels, they are classes."""
    logits, attributes = _run(telemetry, _classifier(num_labels=8), input_ids=IDS)
    assert attributes[semconv.LOGITS_ENTROPY] == pytest.approx(_entropy(logits), rel=1e-4)


def test_one_of_several_texts_is_chosen(telemetry: Telemetry) -> None:
    """A multiple choice has a score for each text: a choice between these, however many labels the configuration has."""
    logits, attributes = _run(telemetry, _head("BertForMultipleChoice", "BertConfig", **SIZES), input_ids=IDS.repeat(4, 1, 1))
    assert attributes[semconv.LOGITS_ENTROPY] == pytest.approx(_entropy(logits), rel=1e-4)


def _speaker() -> Any:
    return _head("Wav2Vec2ForXVector", "Wav2Vec2Config", **TINY, **SOUND)


def _answers() -> Any:
    return _head("ViltForQuestionAnswering", "ViltConfig", **TINY, image_size=16, patch_size=8, num_labels=5)


def _scene() -> Any:
    from transformers import ResNetConfig

    kind: Any = ResNetConfig
    backbone = kind(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", out_features=["stage1"])
    sizes = {**TINY, "backbone_config": backbone, "hidden_size": 24, "max_img_size": 16, "visual_prompt_size": 2, "type_vocab_size": 2}
    return _head("TvpForVideoGrounding", "TvpConfig", **sizes, max_grid_row_position_embeddings=4, max_grid_col_position_embeddings=4)


def _masked_positions() -> Any:
    return _head("ModernBertForMaskedLM", "ModernBertConfig", **SIZES, sparse_prediction=True, cls_token_id=3, sep_token_id=3)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (_speaker, {"input_values": torch.randn(3, 800)}),
        (_answers, {"input_ids": IDS, "pixel_values": PICTURES}),
        (_scene, {"input_ids": IDS[:1], "pixel_values": PICTURES[:1, None], "attention_mask": torch.ones_like(IDS[:1])}),
        (_masked_positions, {"input_ids": IDS, "labels": torch.where(RIGHT.bool(), IDS, -100)}),
    ],
    ids=["an embedding", "independent answers", "times", "masked tokens alone"],
)
def test_scores_of_other_things(telemetry: Telemetry, make: Callable[[], Any], given: dict[str, Any]) -> None:
    """Logits that are none of a choice: states of a speaker, answers each by itself, times, masked tokens."""
    _, attributes = _run(telemetry, make(), **given)
    assert not [key for key in attributes if key.startswith("inferspan.logits")]


def test_frames_of_a_recognizer(telemetry: Telemetry) -> None:
    """A recognizer with a CTC loss can generate, but its last frame is no more than any other."""
    import transformers

    if not hasattr(transformers, "ParakeetForCTC"):
        pytest.skip("a transformers without that model")
    encoder = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_mel_bins": 80,
        "subsampling_conv_channels": 8,
    }  # fmt: skip
    model = _head("ParakeetForCTC", "ParakeetCTCConfig", vocab_size=60, encoder_config=encoder, pad_token_id=0)
    _, attributes = _run(telemetry, model, input_features=torch.randn(2, 64, 80))
    assert not [key for key in attributes if key.startswith("inferspan.logits")]
