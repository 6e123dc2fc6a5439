"""More pipelines of transformers: pictures with words, documents, depth, pairs of pictures, and pipelines that make sound.

Those that need torchvision (mask-generation, any-to-any), pandas or a decoder of videos are not here.
"""

from __future__ import annotations

from typing import Any

from tests.cases import models

from .kinds import noise
from .pipelines import GREEDY, PIPELINES, TEXTS, Task, image_processor, images, made, sounds, tokenizer
from .plain import EYES, SMALL

__all__ = ["TASKS"]

PICTURE = "<image>"
HEADS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def _words() -> Any:
    """The tokenizer, which also splits off the tokens of pictures."""
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": [PICTURE]})
    words.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {% for p in m['content'] %}{% if p['type'] == 'image' %}<image>{% else %} {{ p['text'] }} "
        "{% endif %}{% endfor %}{% endfor %}assistant:"
    )
    return words


def _seeing_chat(task: str) -> Any:
    """A LLaVA with its processor."""
    import transformers

    model, words = models.llava(), _words()
    model.config.image_token_id = words.convert_tokens_to_ids(PICTURE)
    shown = image_processor("CLIPImageProcessorPil", {"height": 8, "width": 8}, do_center_crop=False)
    kind: Any = transformers.LlavaProcessor
    processor = kind(shown, words, patch_size=4, vision_feature_select_strategy="default", chat_template=words.chat_template)
    processor.num_additional_image_tokens = 1
    return made(task, model, processor=processor, tokenizer=words, image_processor=shown)


def _llava_inputs() -> list[Any]:
    return [{"images": picture, "text": f"{PICTURE} {text}"} for picture, text in zip(images(8)(), TEXTS, strict=True)]


def _llava_chats() -> list[Any]:
    pictures = zip(images(8)(), TEXTS, strict=True)
    return [[{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": text}]}] for picture, text in pictures]


def _depth() -> Any:
    import transformers

    config: Any = transformers.GLPNConfig
    sizes = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3], "strides": [4, 2]}
    heads = {"num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 8}
    model = transformers.GLPNForDepthEstimation(config(**sizes, **heads))
    return made("depth-estimation", model, image_processor=image_processor("GLPNImageProcessorPil", {"height": 32, "width": 32}))


def _segments() -> Any:
    import transformers

    config: Any = transformers.SegformerConfig
    sizes = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3], "strides": [4, 2]}
    heads = {"num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 8}
    model = transformers.SegformerForSemanticSegmentation(config(**sizes, **heads))
    return made("image-segmentation", model, image_processor=image_processor("SegformerImageProcessorPil", {"height": 32, "width": 32}))


def _document() -> Any:
    import transformers

    config: Any = transformers.LayoutLMConfig
    words = tokenizer("right")
    words.model_max_length = 32
    return made("document-question-answering", transformers.LayoutLMForQuestionAnswering(config(**SMALL)), tokenizer=words)


def _documents() -> list[Any]:
    boxes = [(word, [100 * number, 10, 100 * number + 50, 40]) for number, word in enumerate(["hello", "there", "kind", "again"])]
    return [{"image": picture, "question": "be kind", "word_boxes": boxes} for picture in images(8)()]


def _owl() -> Any:
    import transformers

    text = {**HEADS, "vocab_size": models.VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config: Any = transformers.OwlViTConfig
    model = transformers.OwlViTForObjectDetection(config(text_config=text, vision_config=EYES, projection_dim=32))
    shown = image_processor("OwlViTImageProcessorPil", {"height": 8, "width": 8}, do_center_crop=False)
    return made("zero-shot-object-detection", model, tokenizer=tokenizer("right"), image_processor=shown)


def _labelled() -> list[Any]:
    return [{"image": picture, "candidate_labels": ["kind", "again"]} for picture in images(8)()]


def _clap() -> Any:
    import transformers

    text = {**HEADS, "vocab_size": models.VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "projection_dim": 16}
    ears = {
        "window_size": 2, "num_mel_bins": 16, "spec_size": 32, "hidden_size": 16, "projection_dim": 16, "depths": [1, 1],
        "num_attention_heads": [2, 2], "patch_embeds_hidden_size": 8, "num_hidden_layers": 2,
    }  # fmt: skip
    config: Any = transformers.ClapConfig
    model = transformers.ClapModel(config(text_config=text, audio_config=ears, projection_dim=16))
    kind: Any = transformers.ClapFeatureExtractor
    extractor = kind(feature_size=16, sampling_rate=1000, hop_length=32, max_length_s=1, fft_window_size=64, frequency_max=500, truncation="rand_trunc", padding="repeatpad")
    return made("zero-shot-audio-classification", model, tokenizer=tokenizer("right"), feature_extractor=extractor)


def _matches() -> Any:
    import transformers

    points: Any = transformers.SuperPointConfig
    config: Any = transformers.SuperGlueConfig
    detector = points(encoder_hidden_sizes=[8, 8, 8, 16], decoder_hidden_size=16, descriptor_decoder_dim=16, max_keypoints=8, keypoint_threshold=0.0)
    model = transformers.SuperGlueForKeypointMatching(
        config(keypoint_detector_config=detector, hidden_size=16, keypoint_encoder_sizes=[8, 16], gnn_layers_types=["self", "cross"], num_attention_heads=2, sinkhorn_iterations=2)
    )
    return made("keypoint-matching", model, image_processor=image_processor("SuperGlueImageProcessorPil", {"height": 32, "width": 32}))


def _pairs() -> list[Any]:
    one, two, three = images(32)()
    return [[one, two], [two, three], [three, one]]


def _music() -> Any:
    import transformers

    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    sound: Any = transformers.EncodecConfig
    config: Any = transformers.MusicgenConfig
    audio = sound(
        hidden_size=8, num_filters=4, upsampling_ratios=[2, 2], codebook_size=16, codebook_dim=8, num_lstm_layers=1, sampling_rate=8000, target_bandwidths=[32.0]
    )
    text = transformers.T5Config(vocab_size=models.VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    decoder = {**small, "vocab_size": 16, "ffn_dim": 16, "num_codebooks": 2, "pad_token_id": 16, "bos_token_id": 16, "max_position_embeddings": 64}
    model = transformers.MusicgenForConditionalGeneration(config(text_encoder=text.to_dict(), audio_encoder=audio.to_dict(), decoder=decoder))
    model.generation_config.update(decoder_start_token_id=16, pad_token_id=16, bos_token_id=16, guidance_scale=None)
    return made("text-to-audio", model, tokenizer=tokenizer("right"))


def _speech() -> Any:
    import transformers

    config: Any = transformers.SpeechT5Config
    model = transformers.SpeechT5ForTextToSpeech(
        config(
            vocab_size=models.VOCABULARY, hidden_size=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16, decoder_layers=1,
            decoder_ffn_dim=16, decoder_attention_heads=2, num_mel_bins=8, speech_decoder_prenet_units=16, speaker_embedding_dim=8,
            speech_decoder_postnet_layers=2, speech_decoder_postnet_units=8, speech_decoder_prenet_dropout=0.0, reduction_factor=1,
        )
    )  # fmt: skip
    voice: Any = transformers.SpeechT5HifiGanConfig
    vocoder = transformers.SpeechT5HifiGan(
        voice(model_in_dim=8, upsample_initial_channel=8, upsample_rates=[2], upsample_kernel_sizes=[4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1]])
    )
    return made("text-to-audio", model, tokenizer=tokenizer("right"), vocoder=vocoder.eval())


def _speaker() -> dict[str, Any]:
    return {"forward_params": {"speaker_embeddings": noise(1, 8), "maxlenratio": 2.0}}


MORE: dict[str, Any] = {"generate_kwargs": GREEDY}
TASKS = {
    **PIPELINES,
    **{
        task.name: task
        for task in (
            Task("image-text-to-text", lambda: _seeing_chat("image-text-to-text"), _llava_inputs, MORE, "generate_content", generates=True),
            Task("image-text-to-text (chat)", lambda: _seeing_chat("image-text-to-text"), _llava_chats, MORE, "chat", generates=True),
            Task("document-question-answering", _document, _documents),
            Task("depth-estimation", _depth, images(32)),
            Task("image-segmentation", _segments, images(32)),
            Task("keypoint-matching", _matches, _pairs),
            Task("zero-shot-object-detection", _owl, _labelled, {"threshold": 0.0}),
            Task("zero-shot-audio-classification", _clap, sounds, {"candidate_labels": ["kind", "again"], "hypothesis_template": "be {}"}),
            Task("text-to-audio (MusicGen)", _music, options=MORE, operation="generate_content", generates=True, tokens=None),
            Task("text-to-audio (SpeechT5)", _speech, options=_speaker(), operation="generate_content", generates=True, tokens=None, nested=True),
        )
    },
}
"""By name: all pipelines."""
