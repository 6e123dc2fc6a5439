"""The operation of a request: what is known of the prompt and of the caller, and never a guess."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "system:", "user:", "assistant:", "be", "kind", "hello", "there", "again"]
CHAT = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello there"}]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(kinds.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _generate(model: Any, *args: Any, **kwargs: Any) -> None:
    model.generate(*args, max_new_tokens=2, do_sample=False, **kwargs)


def _operations(telemetry: Telemetry) -> list[Any]:
    return [(span.attributes or {}).get(semconv.OPERATION_NAME) for span in telemetry.requests()]


def test_features_by_position(telemetry: Telemetry) -> None:
    """Features that a speech model is given by position are no text."""
    model = models.whisper()
    telemetry.instrument(model)
    features = torch.randn(1, 80, 100)
    _generate(model, features)
    _generate(model, input_features=features)
    assert _operations(telemetry) == ["generate_content"] * 2


def test_picture_by_position(telemetry: Telemetry) -> None:
    """So are the pixels of a model that reads text in pictures."""
    from transformers import GPT2Config, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    vision = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4)
    text = GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model: Any = VisionEncoderDecoderModel(config=config).eval()
    telemetry.instrument(model)
    _generate(model, torch.randn(1, 3, 8, 8), decoder_start_token_id=1)
    assert _operations(telemetry) == ["generate_content"]


def test_token_ids_are_text(telemetry: Telemetry) -> None:
    """Token ids of which nothing else is known, by position and by keyword."""
    model = models.llama()
    telemetry.instrument(model)
    _generate(model, models.prompt())
    _generate(model, input_ids=models.prompt())
    assert _operations(telemetry) == ["text_completion"] * 2


def test_prompt_of_a_chat_template(telemetry: Telemetry) -> None:
    """What ``apply_chat_template`` has returned is a chat in each of its forms; what was changed since is not known to be one."""
    model, tokenizer = models.llama(), _tokenizer()
    telemetry.instrument(model)
    options = {"add_generation_prompt": True, "return_tensors": "pt"}
    ids = tokenizer.apply_chat_template(CHAT, return_dict=False, **options)
    _generate(model, ids)
    _generate(model, **tokenizer.apply_chat_template(CHAT, return_dict=True, **options))
    _generate(model, **tokenizer.apply_chat_template(CHAT, return_dict=True, **options).to("cpu"))
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    _generate(model, **tokenizer(text, return_tensors="pt"))
    _generate(model, **tokenizer([text, text], return_tensors="pt"))
    _generate(model, ids[:, 1:])
    _generate(model, **tokenizer("hello there", return_tensors="pt"))
    assert _operations(telemetry) == ["chat"] * 5 + ["text_completion"] * 2


def test_pipeline_with_messages(telemetry: Telemetry) -> None:
    """A pipeline that is given role dicts is a chat, alone and in a batch; one that is given text is not."""
    from transformers import pipeline

    model, tokenizer = models.llama(), _tokenizer()
    run: Any = pipeline("text-generation", model=model, tokenizer=tokenizer)
    telemetry.instrument(run)
    run(CHAT, max_new_tokens=2)
    run([CHAT, CHAT], max_new_tokens=2, batch_size=2)
    run("hello there", max_new_tokens=2)
    assert _operations(telemetry) == ["chat", "chat", "text_completion"]


@pytest.mark.parametrize("by", ["template", "text", "pipeline"])
def test_captured_messages_keep_their_roles(telemetry: Telemetry, by: str) -> None:
    """System and user stay what they are, with the words that the program passed."""
    from transformers import pipeline

    model, tokenizer = models.llama(), _tokenizer()
    telemetry.instrument(model, tokenizer, capture_content="SPAN_ONLY")
    if by == "template":
        _generate(model, **tokenizer.apply_chat_template(CHAT, return_dict=True, return_tensors="pt"))
    elif by == "text":
        text = tokenizer.apply_chat_template(CHAT, tokenize=False)
        _generate(model, **tokenizer(text, return_tensors="pt"))
    else:
        run: Any = pipeline("text-generation", model=model, tokenizer=tokenizer)
        run(CHAT, max_new_tokens=2)
    messages = json.loads(telemetry.only()[semconv.INPUT_MESSAGES])
    assert [message["role"] for message in messages] == ["system", "user"]
    assert [message["parts"][0]["content"] for message in messages] == ["be kind", "hello there"]


def test_setting_wins(telemetry: Telemetry) -> None:
    """An operation that the user names is told as named."""
    model, tokenizer = models.llama(), _tokenizer()
    telemetry.instrument(model, operation="text_completion")
    _generate(model, tokenizer.apply_chat_template(CHAT, return_dict=False, return_tensors="pt"))
    assert _operations(telemetry) == ["text_completion"]


def test_tokenizers_are_left_as_they_were(telemetry: Telemetry) -> None:
    """After ``uninstrument()`` nothing of ours is on the classes of transformers."""
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    before = (PreTrainedTokenizerBase.apply_chat_template, PreTrainedTokenizerBase.__call__, BatchEncoding.to)
    telemetry.instrument(models.llama()).uninstrument()
    assert (PreTrainedTokenizerBase.apply_chat_template, PreTrainedTokenizerBase.__call__, BatchEncoding.to) == before


def test_feature_extraction_pipeline(telemetry: Telemetry) -> None:
    """Forward passes of a feature-extraction pipeline are embeddings; those of the same model elsewhere are not."""
    from transformers import BertConfig, BertModel, pipeline

    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=32
    )
    model = BertModel(config).eval()
    run: Any = pipeline("feature-extraction", model=model, tokenizer=_tokenizer(), device="cpu")
    telemetry.instrument(run)
    run("hello there")
    model(models.prompt())
    assert _operations(telemetry) == ["embeddings"]
    attributes = telemetry.only()
    assert attributes[semconv.EMBEDDINGS_DIMENSION] == 16
    assert attributes[semconv.INPUT_TOKENS] == 2
    assert [span.name.split()[0] for span in telemetry.spans() if span.parent is None] == ["embeddings", "forward"]


def test_encode_of_sentence_transformers(telemetry: Telemetry) -> None:
    """So are those of ``SentenceTransformer.encode``."""
    library = pytest.importorskip("sentence_transformers")

    class Words(torch.nn.Module):
        """The smallest encoder that the library takes."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.tokenizer = torch.nn.Embedding(64, 8), _tokenizer()

        def tokenize(self, texts: Any, *args: Any, **kwargs: Any) -> Any:
            return dict(self.tokenizer(list(texts), return_tensors="pt", padding=True))

        preprocess = tokenize

        def forward(self, features: Any, *args: Any, **kwargs: Any) -> Any:
            return {**features, "sentence_embedding": self.words(features["input_ids"]).mean(1)}

    model = library.SentenceTransformer(modules=[Words()], device="cpu")
    telemetry.instrument(model)
    model.encode(["hello there", "hello"])
    attributes = telemetry.only()
    assert attributes[semconv.OPERATION_NAME] == "embeddings"
    assert attributes[semconv.EMBEDDINGS_DIMENSION] == 8
    assert attributes[semconv.INPUT_TOKENS] == 3
    assert attributes[semconv.BATCH_SIZE] == 2


def test_messages_that_came_before_capture_are_decoded(telemetry: Telemetry) -> None:
    """Messages are kept only while content is captured; a prompt of an earlier time is told as its text."""
    model, other, tokenizer = models.llama(), models.llama(), _tokenizer()
    telemetry.instrument(other)
    prompt = tokenizer.apply_chat_template(CHAT, return_dict=True, return_tensors="pt")
    telemetry.instrument(model, tokenizer, capture_content="SPAN_ONLY")
    _generate(model, **prompt)
    attributes = telemetry.only()
    assert attributes[semconv.OPERATION_NAME] == "chat"
    assert "be kind" in attributes[semconv.INPUT_MESSAGES]
