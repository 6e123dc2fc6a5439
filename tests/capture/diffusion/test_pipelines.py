"""Calls of diffusion pipelines as requests: stages, steps, numbers, failures, and what is left behind."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import inferspan
from inferspan import semconv
from tests.capture.diffusion import pipelines
from tests.cases.telemetry import Telemetry

STEPS = 3
pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    """Text to image."""
    return pipelines.images(tmp_path)


def _run(pipeline: Any, **options: Any) -> Any:
    options = {"num_inference_steps": STEPS, "height": 32, "width": 32, "output_type": "np", **options}
    return pipeline("a cat", generator=torch.Generator().manual_seed(3), **options)


def _tree(telemetry: Telemetry) -> list[tuple[int, str]]:
    """Depth and name of each span but those of modules, in order of time."""
    spans = [span for span in telemetry.spans() if semconv.MODULE_NAME not in (span.attributes or {})]
    by_id = {span.context.span_id: span for span in spans if span.context is not None}

    def depth(span: Any) -> int:
        return 0 if span.parent is None or span.parent.span_id not in by_id else 1 + depth(by_id[span.parent.span_id])

    return [(depth(span), span.name) for span in sorted(spans, key=lambda span: (span.start_time or 0, depth(span)))]


def _named(telemetry: Telemetry, name: str) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in telemetry.spans() if span.name == name]


def _request(telemetry: Telemetry) -> dict[str, Any]:
    (request,) = [span for span in telemetry.spans() if span.parent is None]
    return dict(request.attributes or {})


# ------------------------------------------------------------------------------------------------------- one request a call
def test_a_call_is_one_request_with_its_stages_and_steps(telemetry: Telemetry, pipeline: Any) -> None:
    """Text, the denoising steps and the decoder, in this order."""
    telemetry.instrument(pipeline)
    _run(pipeline)
    telemetry.check()
    steps = [(2, "denoise_step")] * STEPS
    assert _tree(telemetry) == [(0, "generate_content"), (1, "text_encode"), (1, "text_encode"), (1, "denoise"), *steps, (1, "vae_decode")]


def test_images_are_the_same_bit_for_bit(telemetry: Telemetry, pipeline: Any) -> None:
    """Nothing of ours touches the random stream or the numbers."""
    want = _run(pipeline).images
    telemetry.instrument(pipeline)
    assert np.array_equal(_run(pipeline).images, want)


def test_the_global_random_stream_is_untouched(telemetry: Telemetry, pipeline: Any) -> None:
    """A call that draws from the global generator leaves it where a bare one does."""
    seen = []
    for instrumented in (False, True):
        if instrumented:
            telemetry.instrument(pipeline)
        torch.manual_seed(5)
        pipeline("a cat", num_inference_steps=2, height=32, width=32, output_type="np")
        seen.append(torch.rand(1))
    assert torch.equal(*seen)


def test_timesteps_are_those_of_the_scheduler(telemetry: Telemetry, pipeline: Any) -> None:
    """Index and timestep stand on each step, not in its name."""
    telemetry.instrument(pipeline)
    _run(pipeline)
    got = [(step[semconv.DENOISE_INDEX], step[semconv.DENOISE_TIMESTEP]) for step in _named(telemetry, "denoise_step")]
    assert sorted(got) == [*enumerate(pipeline.scheduler.timesteps.double().tolist())]


def test_a_second_order_scheduler_has_more_steps_than_asked_for(telemetry: Telemetry, tmp_path: Path) -> None:
    """Each call of the scheduler is a step; both numbers stand on the request."""
    pipeline = pipelines.images(tmp_path, scheduler="HeunDiscreteScheduler")
    telemetry.instrument(pipeline)
    _run(pipeline)
    request = _request(telemetry)
    assert (request[semconv.DENOISE_STEPS], request[semconv.DENOISE_RAN]) == (STEPS, len(pipeline.scheduler.timesteps))


def test_facts_of_the_call(telemetry: Telemetry, pipeline: Any) -> None:
    """What the caller asked for, by position or by name, and what came out."""
    telemetry.instrument(pipeline)
    generator = torch.Generator().manual_seed(3)
    pipeline(["a cat", "a"], 32, 16, STEPS, num_images_per_prompt=2, guidance_scale=4, generator=generator, output_type="np")
    request = _request(telemetry)
    want = {
        semconv.OPERATION_NAME: "generate_content",
        semconv.PROVIDER_NAME: "huggingface",
        semconv.BATCH_SIZE: 2,
        semconv.REQUEST_CHOICE_COUNT: 2,
        semconv.REQUEST_SEED: 3,
        semconv.DENOISE_STEPS: STEPS,
        semconv.DENOISE_GUIDANCE: 4.0,
        semconv.DENOISE_SCHEDULER: "DDIMScheduler",
        semconv.OUTPUT_IMAGES: 4,
        semconv.OUTPUT_HEIGHT: 32,
        semconv.OUTPUT_WIDTH: 16,
    }
    assert {key: request.get(key) for key in want} == want


def test_a_seed_that_was_not_given_is_not_reported(telemetry: Telemetry, pipeline: Any) -> None:
    """There is none to repeat the call with."""
    telemetry.instrument(pipeline)
    pipeline("a cat", num_inference_steps=1, height=32, width=32, output_type="np")
    assert semconv.REQUEST_SEED not in _request(telemetry)


@pytest.mark.parametrize("form", ["pil", "np", "pt"])
def test_sizes_of_images_in_every_form(telemetry: Telemetry, pipeline: Any, form: str) -> None:
    """Height is not width."""
    telemetry.instrument(pipeline)
    _run(pipeline, height=16, output_type=form)
    request = _request(telemetry)
    assert (request[semconv.OUTPUT_HEIGHT], request[semconv.OUTPUT_WIDTH]) == (16, 32)


def test_latents_are_no_images_of_a_size(telemetry: Telemetry, pipeline: Any) -> None:
    """Their axes are not pixels."""
    telemetry.instrument(pipeline)
    _run(pipeline, output_type="latent")
    assert semconv.OUTPUT_HEIGHT not in _request(telemetry)


def test_stages_have_shapes(telemetry: Telemetry, pipeline: Any) -> None:
    """What went into the decoder and what came out."""
    telemetry.instrument(pipeline)
    _run(pipeline)
    (stage,) = _named(telemetry, "vae_decode")
    assert (stage[semconv.INPUT_SHAPES], stage[semconv.OUTPUT_SHAPES]) == (("1x4x16x16",), ("1x3x32x32",))


def test_modules_of_a_stage_lie_under_it(telemetry: Telemetry, pipeline: Any) -> None:
    """Layers of the text encoder are the first stage's."""
    telemetry.instrument(pipeline)
    _run(pipeline)
    telemetry.check()
    stages = {span.context.span_id for span in telemetry.spans() if span.name == "text_encode" and span.context is not None}
    names = {"text_encoder.encoder.layers.0", "text_encoder.encoder.layers.1"}
    layers = [span for span in telemetry.spans() if (span.attributes or {}).get(semconv.MODULE_NAME) in names]
    assert layers
    assert {span.parent.span_id for span in layers if span.parent is not None} == stages


def test_image_to_image_encodes_first(telemetry: Telemetry, tmp_path: Path) -> None:
    """The image goes through the other half of the autoencoder."""
    pipeline = pipelines.images(tmp_path, "StableDiffusionImg2ImgPipeline")
    telemetry.instrument(pipeline)
    pipeline("a cat", image=torch.rand(1, 3, 32, 32), strength=1.0, num_inference_steps=2, output_type="np")
    names = [name for depth, name in _tree(telemetry) if depth == 1]
    assert names == ["text_encode", "text_encode", "vae_encode", "denoise", "vae_decode"]


@pytest.mark.parametrize("more", [{}, {"output_type": "pil"}, {"output_type": "pt"}, {"return_dict": False}], ids=str)
def test_frames_of_a_video(telemetry: Telemetry, more: dict[str, Any]) -> None:
    """Counted in every form that a pipeline returns."""
    pipeline = pipelines.video()
    telemetry.instrument(pipeline)
    text = {"prompt_embeds": torch.randn(1, 8, 32), "negative_prompt_embeds": torch.randn(1, 8, 32)}
    pipeline(**text, height=16, width=16, num_frames=9, num_inference_steps=2, **{"output_type": "np", **more})
    assert _request(telemetry)[semconv.OUTPUT_FRAMES] == 9


def test_guidance_that_runs_the_denoiser_twice_is_one_step(telemetry: Telemetry) -> None:
    """The scheduler ends a step, not a pass."""
    pipeline = pipelines.video()
    telemetry.instrument(pipeline)
    text = {"prompt_embeds": torch.randn(1, 8, 32), "negative_prompt_embeds": torch.randn(1, 8, 32)}
    pipeline(**text, height=16, width=16, num_frames=5, num_inference_steps=2, guidance_scale=5.0, output_type="np")
    assert len(_named(telemetry, "denoise_step")) == 2


def test_a_pipeline_without_a_text(telemetry: Telemetry) -> None:
    """Its batch is the argument of that name."""
    pipeline = pipelines.unconditional()
    telemetry.instrument(pipeline)
    pipeline(batch_size=2, num_inference_steps=4, output_type="np")
    request = _request(telemetry)
    assert (request[semconv.BATCH_SIZE], request[semconv.OUTPUT_IMAGES], request[semconv.DENOISE_RAN]) == (2, 2, 4)
    assert semconv.DENOISE_BLOCKS not in request


def test_another_loop_of_steps_is_another_stage(telemetry: Telemetry, pipeline: Any) -> None:
    """As a video that is made block by block has, with its size and memory; its steps are counted on, and the request has the rate."""

    def two_loops(self: Any, blocks: int) -> list[Any]:
        latents = torch.randn(1, 4, 16, 16)
        for _ in range(blocks):
            self.scheduler.set_timesteps(2)
            for timestep in self.scheduler.timesteps:
                noise = self.unet(latents, timestep, torch.zeros(1, 8, 32)).sample
                latents = self.scheduler.step(noise, timestep, latents).prev_sample
        return [latents]

    kind = type("Blocks", (type(pipeline),), {"__call__": torch.no_grad()(two_loops)})
    blocks = kind(**pipeline.components, requires_safety_checker=False)
    telemetry.instrument(blocks)
    blocks(3)
    telemetry.check()
    assert sorted(stage[semconv.DENOISE_BLOCK] for stage in _named(telemetry, "denoise")) == [0, 1, 2]
    assert sorted(step[semconv.DENOISE_INDEX] for step in _named(telemetry, "denoise_step")) == [*range(6)]
    for stage in _named(telemetry, "denoise"):
        assert stage[semconv.INPUT_SHAPES] == ("1x4x16x16",)
        assert stage[semconv.OUTPUT_SHAPES][0] == "1x4x16x16"
        assert stage[semconv.MEMORY_PEAK] >= stage[semconv.MEMORY_START] > 0
    request, (call,) = _request(telemetry), [span for span in telemetry.spans() if span.parent is None]
    steps = sorted((span.start_time or 0, span.end_time or 0) for span in telemetry.spans() if span.name == "denoise_step")
    start, end = call.start_time or 0, call.end_time or 0
    assert request[semconv.DENOISE_BLOCKS] == 3
    assert steps[1][1] - start <= request[semconv.TIME_TO_FIRST_BLOCK] * 1e9 + 1e3 <= steps[2][0] - start + 2e3
    assert steps[-1][1] - start <= 3e9 / request[semconv.BLOCKS_PER_SECOND] + 1e3 <= end - start + 2e3


# ------------------------------------------------------------------------------------------------------------------ metrics
def test_metrics_of_a_call(telemetry: Telemetry, pipeline: Any) -> None:
    """A duration for each stage, and no tokens, because there are none."""
    telemetry.instrument(pipeline)
    _run(pipeline)
    names = telemetry.metrics()
    assert semconv.M_STAGE_DURATION in str(names)
    assert semconv.M_USAGE_INPUT not in str(names)


def test_the_summary_counts_calls(telemetry: Telemetry, pipeline: Any) -> None:
    """In words of their own."""
    handle = telemetry.instrument(pipeline)
    _run(pipeline)
    assert str(handle.summary()).startswith("1 pipeline call")


# ----------------------------------------------------------------------------------------------------------------- settings
def test_without_steps_there_are_stages(telemetry: Telemetry, pipeline: Any) -> None:
    """The denoiser and the scheduler are left alone."""
    telemetry.instrument(pipeline, steps="none")
    _run(pipeline)
    telemetry.check()
    assert [name for depth, name in _tree(telemetry) if depth] == ["text_encode", "text_encode", "vae_decode"]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [((), ["denoise"]), (("vae_decode",), ["denoise", "vae_decode"]), ("auto", ["text_encode", "text_encode", "denoise", "vae_decode"])],
)
def test_stages_can_be_left_out(telemetry: Telemetry, pipeline: Any, stages: Any, expected: list[str]) -> None:
    """The setting leaves all of them or some; the denoising, which has the steps, stays."""
    telemetry.instrument(pipeline, stages=stages)
    _run(pipeline)
    telemetry.check()
    assert [name for depth, name in _tree(telemetry) if depth == 1] == expected


def test_a_small_budget_keeps_the_stages(telemetry: Telemetry, pipeline: Any) -> None:
    """Modules and steps are thinned, and counted."""
    telemetry.instrument(pipeline, max_spans_per_trace=14)
    _run(pipeline)
    telemetry.check()
    assert [name for depth, name in _tree(telemetry) if depth == 1] == ["text_encode", "text_encode", "denoise", "vae_decode"]
    assert _request(telemetry)[semconv.SPANS_DROPPED] > 0


def test_a_call_that_is_not_sampled(pipeline: Any) -> None:
    """No span, the same images."""
    telemetry = Telemetry(ALWAYS_OFF)
    want = _run(pipeline).images
    telemetry.instrument(pipeline)
    assert np.array_equal(_run(pipeline).images, want)
    assert telemetry.spans() == []
    telemetry.close()


# ----------------------------------------------------------------------------------------------------------------- failures
@pytest.mark.parametrize("place", ["text_encoder", "unet", "vae"])
def test_an_exception_passes_and_ends_what_was_open(telemetry: Telemetry, pipeline: Any, place: str) -> None:
    """The stage and the request carry its type."""
    telemetry.instrument(pipeline)
    module = getattr(pipeline, place)
    inner = module.decoder if place == "vae" else module

    def fails(*_: Any) -> None:
        raise LookupError("theirs")

    hook = inner.register_forward_pre_hook(fails)
    with pytest.raises(LookupError, match="theirs"):
        _run(pipeline)
    hook.remove()
    telemetry.check()
    assert _request(telemetry)[semconv.ERROR_TYPE] == "LookupError"


def test_an_interrupt_passes(telemetry: Telemetry, pipeline: Any) -> None:
    """From a callback, in the midst of the loop."""
    telemetry.instrument(pipeline)

    def stop(*_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(pipeline, callback_on_step_end=stop)
    telemetry.check()
    assert _request(telemetry)[semconv.ERROR_TYPE] == "KeyboardInterrupt"


def test_wrong_arguments_raise_what_they_raised(telemetry: Telemetry, pipeline: Any) -> None:
    """The call itself says it."""
    telemetry.instrument(pipeline)
    with pytest.raises(TypeError):
        pipeline("a cat", prompt="another")
    with pytest.raises(ValueError, match="divisible"):
        pipeline("a cat", height=3, width=3)
    telemetry.check()


@pytest.mark.parametrize("thing", [object(), "pipeline", 3], ids=["object", "text", "number"])
def test_what_is_no_pipeline_is_told(thing: Any) -> None:
    """With what can be instrumented."""
    with pytest.raises(TypeError, match="or diffusers"):
        inferspan.instrument(thing)


# ------------------------------------------------------------------------------------------------------------- left behind
def _state(pipeline: Any) -> list[Any]:
    kinds = [type(pipeline), type(pipeline.scheduler), type(pipeline.vae)]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for part in pipeline.components.values() if isinstance(part, torch.nn.Module) for module in part.modules()]
    return [hooks, [dict(vars(kind)) for kind in kinds]]


def test_between_calls_only_the_call_is_wrapped(telemetry: Telemetry, pipeline: Any) -> None:
    """Hooks, the scheduler and the autoencoder are as they were."""
    before = _state(pipeline)
    telemetry.instrument(pipeline)
    _run(pipeline)
    hooks, (_, *others) = _state(pipeline)
    assert (hooks, others) == (before[0], before[1][1:])


def test_uninstrument_takes_everything_off(telemetry: Telemetry, pipeline: Any) -> None:
    """The class of the pipeline as well."""
    before = _state(pipeline)
    handle = telemetry.instrument(pipeline)
    _run(pipeline)
    handle.uninstrument()
    assert _state(pipeline) == before
    assert inferspan.uninstrument(pipeline) is False


def test_another_pipeline_of_the_class_is_not_seen(telemetry: Telemetry, pipeline: Any, tmp_path: Path) -> None:
    """Although its class has our wrapper."""
    telemetry.instrument(pipeline)
    _run(pipelines.images(tmp_path))
    assert telemetry.spans() == []


def test_a_pipeline_is_not_kept_alive(telemetry: Telemetry, tmp_path: Path) -> None:
    """Neither are its components."""
    pipeline = pipelines.images(tmp_path)
    telemetry.instrument(pipeline)
    _run(pipeline)
    gone = [weakref.ref(pipeline), weakref.ref(pipeline.unet)]
    del pipeline
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_a_component_that_is_replaced_is_followed(telemetry: Telemetry, pipeline: Any, tmp_path: Path) -> None:
    """The scheduler and the denoiser of the next call are those that it has by then."""
    telemetry.instrument(pipeline)
    _run(pipeline)
    other = pipelines.images(tmp_path, scheduler="EulerDiscreteScheduler")
    pipeline.scheduler, pipeline.unet = other.scheduler, other.unet
    _run(pipeline)
    telemetry.check()
    found = [span.attributes or {} for span in telemetry.spans() if span.parent is None]
    assert [one[semconv.DENOISE_SCHEDULER] for one in found] == ["DDIMScheduler", "EulerDiscreteScheduler"]
    assert [one[semconv.DENOISE_RAN] for one in found] == [STEPS, STEPS]


def test_two_pipelines_on_two_threads(telemetry: Telemetry, tmp_path: Path) -> None:
    """Each call has its own stages and steps."""
    both = [pipelines.images(tmp_path), pipelines.images(tmp_path)]
    for one in both:
        telemetry.instrument(one)
    threads = [threading.Thread(target=_run, args=(one,)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    telemetry.check()
    assert len(_named(telemetry, "denoise_step")) == 2 * STEPS


def test_a_compiled_denoiser_has_steps(telemetry: Telemetry, pipeline: Any) -> None:
    """No hook tells of its passes, so a step begins where the one before ended."""
    torch._dynamo.reset()
    pipeline.unet.compile(backend="eager")
    telemetry.instrument(pipeline)
    _run(pipeline)
    telemetry.check()
    assert len(_named(telemetry, "denoise_step")) == STEPS
    torch._dynamo.reset()


def test_a_component_by_itself_is_no_request(telemetry: Telemetry, pipeline: Any) -> None:
    """Only calls of the pipeline are."""
    telemetry.instrument(pipeline)
    with torch.no_grad():
        pipeline.vae.decode(torch.zeros(1, 4, 8, 8))
    assert telemetry.spans() == []
