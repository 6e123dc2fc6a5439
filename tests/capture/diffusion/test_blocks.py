"""Calls of a decoder inside one decoding: of tiles, slices and batches of frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inferspan import semconv
from tests.capture.diffusion import pipelines
from tests.cases.telemetry import Telemetry

pytestmark = [pytest.mark.filterwarnings("ignore")]
LIMIT = 128
"""Spans of one decoding, as documented."""


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    """Text to image."""
    return pipelines.images(tmp_path)


def _run(pipeline: Any, size: int = 32) -> Any:
    generator = torch.Generator().manual_seed(3)
    return pipeline(["a cat", "a"], num_inference_steps=1, height=size, width=size, output_type="np", generator=generator).images


def _tile(pipeline: Any, size: int = 8) -> None:
    pipeline.vae.enable_tiling()
    pipeline.vae.tile_latent_min_size, pipeline.vae.tile_sample_min_size = size, 2 * size


def _slice(pipeline: Any) -> None:
    pipeline.vae.enable_slicing()


def _both(pipeline: Any) -> None:
    _tile(pipeline)
    _slice(pipeline)


def _calls(module: torch.nn.Module) -> list[tuple[str, str]]:
    """Shapes of input and output of each call of ``module`` from now on."""
    found: list[tuple[str, str]] = []

    def note(_: Any, inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        found.append(("x".join(map(str, inputs[0].shape)), "x".join(map(str, first.shape))))

    module.register_forward_hook(note)
    return found


def _spans(telemetry: Telemetry, name: str) -> list[Any]:
    return sorted((span for span in telemetry.spans() if span.name == name), key=lambda span: span.start_time or 0)


@pytest.mark.parametrize("divide", [_slice, _tile, _both])
def test_each_call_of_the_decoder_has_a_span(telemetry: Telemetry, pipeline: Any, divide: Any) -> None:
    """In order, with its shapes, inside the decoding, which has their number."""
    divide(pipeline)
    calls = _calls(pipeline.vae.decoder)
    telemetry.instrument(pipeline)
    _run(pipeline)
    telemetry.check()
    blocks, (stage,) = _spans(telemetry, "vae_decode_block"), _spans(telemetry, "vae_decode")
    assert len(calls) > 1
    assert [block.attributes[semconv.VAE_BLOCK] for block in blocks] == [*range(len(calls))]
    shapes = [(block.attributes[semconv.INPUT_SHAPES][0], block.attributes[semconv.OUTPUT_SHAPES][0]) for block in blocks]
    assert shapes == calls
    assert stage.attributes[semconv.VAE_BLOCKS] == len(calls)
    assert semconv.VAE_BLOCKS_OMITTED not in stage.attributes
    assert {block.parent.span_id for block in blocks} == {stage.context.span_id}
    times = [moment for block in blocks for moment in (block.start_time, block.end_time)]
    assert [stage.start_time, *times, stage.end_time] == sorted([stage.start_time, *times, stage.end_time])


def test_a_decoding_in_one_call_has_none(telemetry: Telemetry, pipeline: Any) -> None:
    """The stage says it all."""
    telemetry.instrument(pipeline)
    _run(pipeline)
    (stage,) = _spans(telemetry, "vae_decode")
    assert _spans(telemetry, "vae_decode_block") == []
    assert semconv.VAE_BLOCKS not in stage.attributes


@pytest.mark.parametrize("divide", [_slice, _tile, _both])
def test_images_are_the_same_bit_for_bit(telemetry: Telemetry, pipeline: Any, divide: Any) -> None:
    """Tiled and sliced as well."""
    divide(pipeline)
    want = _run(pipeline)
    telemetry.instrument(pipeline)
    assert np.array_equal(_run(pipeline), want)


def test_a_stage_that_is_left_out_has_no_blocks(telemetry: Telemetry, pipeline: Any) -> None:
    """Nor does the decoder have a hook while it runs."""
    _both(pipeline)
    hooks: list[int] = []
    telemetry.instrument(pipeline, stages=("text_encode",))
    pipeline.vae.decoder.conv_in.register_forward_hook(lambda *_: hooks.append(len(pipeline.vae.decoder._forward_hooks)))
    _run(pipeline)
    assert _spans(telemetry, "vae_decode_block") == []
    assert set(hooks) == {0}


def test_hooks_come_off_with_the_call(telemetry: Telemetry, pipeline: Any) -> None:
    """The decoder is as it was."""
    _tile(pipeline)
    telemetry.instrument(pipeline)
    _run(pipeline)
    assert (dict(pipeline.vae.decoder._forward_pre_hooks), dict(pipeline.vae.decoder._forward_hooks)) == ({}, {})


def test_spans_of_a_decoding_are_limited(telemetry: Telemetry, pipeline: Any) -> None:
    """The others are counted."""
    _both(pipeline)
    _tile(pipeline, 2)
    calls = _calls(pipeline.vae.decoder)
    telemetry.instrument(pipeline, max_spans_per_trace=5000)
    _run(pipeline)
    (stage,) = _spans(telemetry, "vae_decode")
    assert len(calls) > LIMIT
    assert len(_spans(telemetry, "vae_decode_block")) == LIMIT
    assert stage.attributes[semconv.VAE_BLOCKS] == len(calls)
    assert stage.attributes[semconv.VAE_BLOCKS_OMITTED] == len(calls) - LIMIT


def test_an_exception_in_a_tile_passes(telemetry: Telemetry, pipeline: Any) -> None:
    """That block and the decoding carry its type, those before do not."""
    _tile(pipeline)
    calls = _calls(pipeline.vae.decoder)
    telemetry.instrument(pipeline)

    def fails(*_: Any) -> None:
        if len(calls) == 2:
            raise LookupError("theirs")

    pipeline.vae.decoder.conv_in.register_forward_pre_hook(fails)
    with pytest.raises(LookupError, match="theirs"):
        _run(pipeline)
    telemetry.check()
    blocks, (stage,) = _spans(telemetry, "vae_decode_block"), _spans(telemetry, "vae_decode")
    assert [block.attributes.get(semconv.ERROR_TYPE) for block in blocks] == [None, None, "LookupError"]
    assert (stage.attributes[semconv.VAE_BLOCKS], stage.attributes[semconv.ERROR_TYPE]) == (3, "LookupError")


def test_a_compiled_decoding_is_left_alone(telemetry: Telemetry, pipeline: Any) -> None:
    """Hooks would be compiled into it."""
    torch._dynamo.reset()
    _slice(pipeline)
    pipeline.vae.decode = torch.compile(pipeline.vae.decode, backend="eager")
    hooks: list[int] = []
    telemetry.instrument(pipeline)
    step = pipeline.scheduler.step

    def look(*args: Any, **kwargs: Any) -> Any:
        hooks.append(len(pipeline.vae.decoder._forward_hooks))
        return step(*args, **kwargs)

    pipeline.scheduler.step = look
    _run(pipeline)
    telemetry.check()
    assert (_spans(telemetry, "vae_decode_block"), hooks) == ([], [0])
    torch._dynamo.reset()


def test_a_video_is_decoded_by_batches_of_frames(telemetry: Telemetry) -> None:
    """Each has its frames, which add up to those of the decoding."""
    pipeline = pipelines.video()
    calls = _calls(pipeline.vae.decoder)
    telemetry.instrument(pipeline)
    embeds = torch.zeros(1, 4, 32)
    pipeline(prompt_embeds=embeds, num_inference_steps=1, height=16, width=16, num_frames=9, guidance_scale=1.0, output_type="np")
    telemetry.check()
    blocks, (stage,) = _spans(telemetry, "vae_decode_block"), _spans(telemetry, "vae_decode")
    frames = [block.attributes[semconv.OUTPUT_FRAMES] for block in blocks]
    assert (len(calls), frames) == (3, [1, 4, 4])
    assert stage.attributes[semconv.OUTPUT_FRAMES] == 9
