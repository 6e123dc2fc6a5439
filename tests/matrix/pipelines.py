"""Pipelines of transformers, one of each task with a tiny model, and ways to call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.cases import models

from .kinds import noise
from .plain import EYES, MODULES, SMALL

__all__ = ["CALLS", "GREEDY", "PIPELINES", "TEXTS", "CallWay", "Task", "hearing", "image_processor", "images", "made", "sounds", "tokenizer"]

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", "system:", "user:", "assistant:", "be", "kind", "hello", "there", "again", "<image>"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
TEXTS = ("hello there", "be kind", "hello again there")


@dataclass(frozen=True)
class Task:
    """A pipeline.

    Attributes:
        name: what the page calls it.
        make: makes the pipeline.
        inputs: makes three inputs.
        options: of a call.
        operation: of the request; ``None`` if it is none of the conventions.
        generates: whether the model generates.
        tokens: of each answer; ``None`` if the model returns something else.
        nested: whether ``generate()`` is a part of the request even where it is the only one.
    """

    name: str
    make: Callable[[], Any]
    inputs: Callable[[], list[Any]] = lambda: list(TEXTS)
    options: dict[str, Any] = field(default_factory=dict)
    operation: str | None = None
    generates: bool = False
    tokens: int | None = 3
    nested: bool = False

    def pipeline(self) -> Any:
        """A new pipeline, always of the same weights."""
        import torch

        torch.manual_seed(0)
        return self.make()


@dataclass(frozen=True)
class CallWay:
    """A way to call a pipeline.

    Attributes:
        name: what the page calls it.
        call: makes the call from the pipeline, three inputs and the options; gives a list of results.
        lazy: whether each batch of one item is a request, because the pipeline returns an iterator.
    """

    name: str
    call: Callable[[Any, list[Any], dict[str, Any]], list[Any]]
    lazy: bool = False


def tokenizer(padding_side: str = "left") -> Any:
    """A tokenizer of a few words that needs no file."""
    import transformers
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as kinds

    inner = Tokenizer(kinds.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", mask_token="<mask>",
        cls_token="<s>", sep_token="</s>", padding_side=padding_side, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    made.chat_template = TEMPLATE
    return made


def made(task: str, model: Any, **parts: Any) -> Any:
    """A pipeline of the task."""
    from transformers import pipeline

    make: Any = pipeline
    return make(task, model=model.eval(), device="cpu", **parts)


def _bert(task: str, head: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        config: Any = transformers.BertConfig
        return made(task, getattr(transformers, head)(config(**SMALL, **options)), tokenizer=tokenizer())

    return make


def images(size: int = 8) -> Callable[[], list[Any]]:
    """Makes three pictures, each of one shade."""
    def make() -> list[Any]:
        import numpy
        from PIL import Image

        return [Image.fromarray(numpy.full((size, size, 3), shade, dtype=numpy.uint8)) for shade in (10, 90, 200)]

    return make


def image_processor(name: str, size: Any, **options: Any) -> Any:
    """An image processor of the class ``name``, which has no "Pil" in its name in transformers 4."""
    import transformers

    kind = getattr(transformers, name, None) or getattr(transformers, name.removesuffix("Pil"))
    return kind(size=size, **options)


def _seen(task: str, kind: str, processor: str, size: Any, **options: Any) -> Callable[[], Any]:
    return lambda: made(task, MODULES[kind].make(), image_processor=image_processor(processor, size, **options))


def _vit(task: str, head: str) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        config: Any = transformers.ViTConfig
        model = getattr(transformers, head)(config(**EYES))
        return made(task, model, image_processor=image_processor("ViTImageProcessorPil", {"height": 8, "width": 8}))

    return make


def _clip() -> Any:
    size = {"height": 8, "width": 8}
    processor = image_processor("CLIPImageProcessorPil", size, do_center_crop=False)
    return made("zero-shot-image-classification", MODULES["CLIP"].make(), tokenizer=tokenizer(), image_processor=processor)


def sounds() -> list[Any]:
    """Three sounds of different lengths."""
    return [noise(length).numpy() for length in (400, 480, 560)]


def hearing() -> Any:
    """A feature extractor of raw sound."""
    import transformers

    return transformers.Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=16000, return_attention_mask=False)


def _ctc() -> Any:
    return made("automatic-speech-recognition", MODULES["wav2vec 2"].make(), tokenizer=tokenizer("right"), feature_extractor=hearing())


def _heard() -> Any:
    import transformers

    config: Any = transformers.Wav2Vec2Config
    model = transformers.Wav2Vec2ForSequenceClassification(
        config(
            vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, conv_dim=(16, 16),
            conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=2, classifier_proj_size=16,
        )
    )  # fmt: skip
    return made("audio-classification", model, feature_extractor=hearing())


def _whisper() -> Any:
    import transformers

    model = models.whisper()
    seconds = 2 * model.config.max_source_positions // 100
    extractor: Any = transformers.WhisperFeatureExtractor
    ears = extractor(feature_size=model.config.num_mel_bins, chunk_length=seconds)
    kind: Any = transformers.WhisperTokenizer
    words = {word: number for number, word in enumerate(["<|endoftext|>", "<s>", "</s>", *(f"w{number}" for number in range(61))])}
    writing = kind(vocab=words, merges=[], unk_token="<|endoftext|>", bos_token="<s>", eos_token="</s>", pad_token="</s>")
    return made("automatic-speech-recognition", model, tokenizer=writing, feature_extractor=ears)


def _speaking() -> Any:
    import transformers

    config: Any = transformers.VitsConfig
    model = transformers.VitsModel(
        config(
            vocab_size=models.VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, flow_size=16,
            spectrogram_bins=9, upsample_initial_channel=16, upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8],
            resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1]], prior_encoder_num_flows=1, prior_encoder_num_wavenet_layers=1,
            posterior_encoder_num_wavenet_layers=1, duration_predictor_num_flows=1, depth_separable_num_layers=1, noise_scale=0.0,
            noise_scale_duration=0.0,
        )
    )  # fmt: skip
    return made("text-to-audio", model, tokenizer=tokenizer())


def _chats() -> list[Any]:
    return [[{"role": "user", "content": text}] for text in TEXTS]


GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
_eight, _vit_size = images(), {"height": 8, "width": 8}

PIPELINES = {
    task.name: task
    for task in (
        Task("text-generation", lambda: made("text-generation", models.llama(), tokenizer=tokenizer()), options=GREEDY, operation="text_completion", generates=True),
        Task("text-generation (chat)", lambda: made("text-generation", models.llama(), tokenizer=tokenizer()), _chats, GREEDY, "chat", generates=True),
        Task("automatic-speech-recognition (Whisper)", _whisper, sounds, {"generate_kwargs": {"max_new_tokens": 3, "min_new_tokens": 3}}, "generate_content", generates=True),
        Task("automatic-speech-recognition (CTC)", _ctc, sounds),
        Task("audio-classification", _heard, sounds),
        Task("text-to-audio", _speaking),
        Task("text-classification", _bert("text-classification", "BertForSequenceClassification")),
        Task("token-classification", _bert("token-classification", "BertForTokenClassification")),
        Task("fill-mask", _bert("fill-mask", "BertForMaskedLM"), lambda: [f"{text} <mask>" for text in TEXTS], {"top_k": 2}),
        Task("feature-extraction", _bert("feature-extraction", "BertModel"), operation="embeddings"),
        Task(
            "zero-shot-classification",
            _bert("zero-shot-classification", "BertForSequenceClassification", num_labels=3, id2label={0: "entailment", 1: "neutral", 2: "contradiction"}, label2id={"entailment": 0, "neutral": 1, "contradiction": 2}),
            options={"candidate_labels": ["kind", "again"], "hypothesis_template": "be {}"},
        ),
        Task("image-classification", _vit("image-classification", "ViTForImageClassification"), _eight),
        Task("image-feature-extraction", _vit("image-feature-extraction", "ViTModel"), _eight, operation="embeddings"),
        Task("object-detection", _seen("object-detection", "DETR", "DetrImageProcessorPil", {"height": 64, "width": 64}), images(64), {"threshold": 0.0}),
        Task("zero-shot-image-classification", _clip, _eight, {"candidate_labels": ["kind", "again"], "hypothesis_template": "be {}"}),
    )
}  # fmt: skip
"""By name."""


def _one(pipeline: Any, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
    return [pipeline(inputs[0], **options)]


def _list(pipeline: Any, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
    return [*pipeline(inputs, **options)]


def _batches(pipeline: Any, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
    return [*pipeline(inputs, batch_size=2, **options)]


def _generator(pipeline: Any, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
    return [*pipeline((one for one in inputs), **options)]


def _data_set(pipeline: Any, inputs: list[Any], options: dict[str, Any]) -> list[Any]:
    from torch.utils.data import Dataset

    class Inputs(Dataset[Any]):
        def __len__(self) -> int:
            return len(inputs)

        def __getitem__(self, index: int) -> Any:
            return inputs[index]

    return [*pipeline(Inputs(), **options)]


CALLS = {
    way.name: way
    for way in (
        CallWay("one input", _one),
        CallWay("a list", _list),
        CallWay("a list in batches", _batches),
        CallWay("a generator", _generator, lazy=True),
        CallWay("a data set", _data_set, lazy=True),
    )
}
"""By name."""
