"""Stages of multimodal models: named by hand, left out, within the budget, over several turns, and nothing left on decode steps."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from importlib.metadata import version
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from torch import nn
from transformers import LlamaForCausalLM

import inferspan
from inferspan import guard, semconv, setting_checks
from inferspan.capture.device import clock as device_clock
from inferspan.capture.modules.hooks import ModuleObservers
from tests.capture.device.fake_cuda import FakeCuda
from tests.cases import models, multimodal
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

OPTIONS: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
TRANSFORMERS_4 = version("transformers").startswith("4.")
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
EYES, PROJECTOR = "model.vision_tower", "model.multi_modal_projector"
INSIDE = "vision_model." if TRANSFORMERS_4 else ""


def _picture(rows: int = 1) -> dict[str, Any]:
    ids = multimodal.with_placeholders(multimodal.IMAGE, 4, rows)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": multimodal.noise(rows, 3, 8, 8)}


def _stages(telemetry: Telemetry) -> list[tuple[str, str, Any]]:
    """Name, module and tokens of each span of a stage, in the order in which they began."""
    found: list[Any] = [(span, dict(span.attributes or {})) for span in telemetry.spans()]
    return [
        (span.name, facts[semconv.MODULE_NAME], facts.get(semconv.STAGE_TOKENS)) for span, facts in found if semconv.STAGE_NAME in facts
    ]


FOUND = [("vision_encode", EYES, 4), ("fusion", PROJECTOR, 4)]


# ------------------------------------------------------------------------------------------------------------------ settings
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("auto", FOUND),
        (["fusion"], FOUND[1:]),
        ((), []),
        ("none", []),
        ({"eyes": EYES}, [("eyes", EYES, 4)]),
        ({"vision_encode": f"{EYES}*", "fusion": ()}, FOUND),
        ({"vision_encode": ["*.patch_embedding", "*.pre_layrnorm"]}, [("vision_encode", f"{EYES}.{INSIDE}{name}", 4) for name in ("embeddings.patch_embedding", "pre_layrnorm")]),
        ({"words": "model.language_model"}, [("words", "model.language_model", None)]),
    ],
    ids=["auto", "some", "empty", "none", "own name", "pattern of nested modules", "two patterns", "no image"],
)  # fmt: skip
def test_the_setting_chooses_stages(telemetry: Telemetry, setting: Any, expected: list[Any]) -> None:
    """Stages are those of the structure, some of them, those of patterns (of nested modules the outer one), or none."""
    model = models.llava()
    telemetry.instrument(model, stages=setting, modules="none")
    with torch.no_grad():
        model(**_picture())
    telemetry.check()
    assert _stages(telemetry) == expected
    assert len(telemetry.spans()) == 1 + len(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("none", []), ("fusion", FOUND[1:]), (f"eyes={EYES}, fusion", [("eyes", EYES, 4), FOUND[1]]), ("auto", FOUND), ("eyes", FOUND)],
)
def test_the_environment_chooses_stages(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, expected: list[Any]
) -> None:
    """The variable does the same; one that names nothing is ignored with a warning."""
    monkeypatch.setenv("INFERSPAN_STAGES", text)
    monkeypatch.setattr(setting_checks, "warned", set())
    model = models.llava()
    telemetry.instrument(model)
    with torch.no_grad():
        model(**_picture())
    assert _stages(telemetry) == expected
    warnings = [record.getMessage() for record in caplog.records if record.name == "inferspan" and record.levelno == logging.WARNING]
    assert len(warnings) == (text == "eyes")


@pytest.mark.parametrize(
    "setting",
    [5, True, {"": EYES}, {"prefill": EYES}, {"eyes": 3}, {"eyes": [""]}, {"eyes": []}, ["eyes"], [("eyes", EYES, 1)], {1: EYES}, "eyes"],
    ids=repr,
)
def test_a_wrong_argument_is_one_clear_error(setting: Any) -> None:
    """It names the setting and what is allowed, and leaves the model alone."""
    model = models.llava()
    with pytest.raises(inferspan.SettingsError, match=r"inferspan setting 'stages' cannot be .*: use \"auto\", \"none\", some of vision_encode"):
        inferspan.instrument(model, stages=setting)
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}


def test_a_pattern_without_a_module_is_one_warning(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the pattern, the stage and the model; the other stages are there."""
    monkeypatch.setattr(setting_checks, "warned", set())
    model = models.llava()
    for _ in range(2):
        telemetry.instrument(model, stages={"ears": "model.audio_tower", "eyes": EYES}).uninstrument()
    telemetry.instrument(model, stages={"ears": "model.audio_tower", "eyes": EYES})
    with torch.no_grad():
        model(**_picture())
    warnings = [record.getMessage() for record in caplog.records if "stages" in record.getMessage()]
    assert warnings == [
        "inferspan setting 'stages': pattern 'model.audio_tower' of stage 'ears' matches no module of LlavaForConditionalGeneration"
    ]
    assert _stages(telemetry) == [("eyes", EYES, 4)]


# -------------------------------------------------------------------------------------------------------------- decode steps
def test_nothing_is_on_the_stages_in_decode_steps(telemetry: Telemetry) -> None:
    """After the first token the observers come off with the first step that has run no stage, and stay off."""
    from transformers import StoppingCriteria

    model, seen = models.llava(), []

    class Look(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
            seen.append(attached(model)["slot"] + attached(model)["hooks"])
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    telemetry.instrument(model, modules="none")
    model.generate(**_picture(), **{**OPTIONS, "stopping_criteria": [Look()]})
    # Asked after each step: the first two are those of the prompt and of the first token.
    assert seen == [2, 0, 0, 0]
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}


def test_a_request_that_is_not_sampled_observes_no_stage() -> None:
    """Nothing is attached for it."""
    telemetry, seen = Telemetry(ALWAYS_OFF), []
    model = models.llava()
    telemetry.instrument(model)
    model.model.vision_tower.register_forward_hook(lambda *_: seen.append(attached(model)))
    model.generate(**_picture(), **OPTIONS)
    assert seen == [{"slot": 0, "hooks": 0, "left": 0}]
    telemetry.close()


# -------------------------------------------------------------------------------------------------------------------- tokens
@pytest.mark.skipif(TRANSFORMERS_4, reason="transformers 4 runs no encoder once there is a cache")
def test_a_second_turn_counts_new_images_only(telemetry: Telemetry) -> None:
    """An image in the cache is in the usage of the second turn and not in its stages: only what runs again has a span."""
    from transformers import DynamicCache

    model, cache = models.llava(), DynamicCache()
    telemetry.instrument(model, modules="none")
    with torch.no_grad():
        first = model.generate(**_picture(), **OPTIONS, **{CACHE: cache})
        words = torch.cat([first, models.prompt(1, 3)], dim=1)
        second = model.generate(words, attention_mask=torch.ones_like(words), **OPTIONS, **{CACHE: cache})
        more = torch.cat([second, multimodal.with_placeholders(multimodal.IMAGE, 4, 1)], dim=1)
        model.generate(
            more, attention_mask=torch.ones_like(more), pixel_values=multimodal.noise(1, 3, 8, 8), **OPTIONS, **{CACHE: cache}
        )
    telemetry.check()
    assert _stages(telemetry) == [*FOUND, *FOUND]
    usage = [(span.attributes or {}).get(semconv.IMAGE_INPUT_TOKENS) for span in telemetry.requests()]
    assert usage == [4, 4, 8]
    had = [(span.attributes or {}).get(semconv.INPUT_MODALITIES) for span in telemetry.requests()]
    assert had == [("text", "image")] * 3


def test_the_shares_of_an_image_and_a_video_are_not_known(telemetry: Telemetry) -> None:
    """One encoder that runs for both has a span for each, without tokens, and the request has no split."""
    model, given = multimodal.qwen2_vl(), multimodal.qwen_picture(1)
    ids = torch.cat([torch.full((1, 4), 61), given["input_ids"]], dim=1)
    given |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in given:
        given["mm_token_type_ids"] = (ids == 63).int() + 2 * (ids == 61).int()
    telemetry.instrument(model, modules="none")
    with torch.no_grad():
        model.generate(**given, **OPTIONS, pixel_values_videos=multimodal.noise(16, 96), video_grid_thw=torch.tensor([[1, 4, 4]]))
    telemetry.check()
    assert _stages(telemetry) == [("vision_encode", "model.visual", None), ("fusion", "model.visual.merger", None)] * 2
    assert telemetry.only()[semconv.INPUT_MODALITIES] == ("text", "image", "video")
    assert semconv.IMAGE_INPUT_TOKENS not in telemetry.only()


def test_embeddings_do_not_tell_what_they_are(telemetry: Telemetry) -> None:
    """There is no list of modalities, rather than a wrong one."""
    model = models.llava()
    telemetry.instrument(model)
    with torch.no_grad():
        model.generate(inputs_embeds=model.get_input_embeddings()(models.prompt(1, 5)), **OPTIONS)
        model(inputs_embeds=model.get_input_embeddings()(models.prompt(1, 5)))
    assert [semconv.INPUT_MODALITIES in (span.attributes or {}) for span in telemetry.roots()] == [False, False]


def test_a_text_model_has_no_list_of_modalities(telemetry: Telemetry) -> None:
    """It can have nothing else."""
    model = models.llama()
    telemetry.instrument(model)
    model.generate(models.prompt(), **OPTIONS)
    assert semconv.INPUT_MODALITIES not in telemetry.only()


def test_each_window_of_a_long_recording_is_encoded(telemetry: Telemetry) -> None:
    """Whisper runs its encoder anew for each window, also after tokens have been decoded."""
    model, runs = models.whisper(), []
    model.generation_config.no_timestamps_token_id = model.config.no_timestamps_token_id = 40
    forward = model.model.encoder.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return forward(*args, **kwargs)

    model.model.encoder.forward = counted
    telemetry.instrument(model, modules="none")
    sound, mask = multimodal.noise(1, 80, 250), torch.ones(1, 250, dtype=torch.long)
    model.generate(input_features=sound, attention_mask=mask, return_timestamps=True, max_new_tokens=6)
    telemetry.check()
    assert len(runs) > 1
    assert _stages(telemetry) == [("audio_encode", "model.encoder", None)] * len(runs)


# ------------------------------------------------------------------------------------------------------------ budget, errors
@pytest.mark.parametrize(("budget", "stages"), [(40, 2), (8, 2), (5, 1), (4, 0)])
def test_stages_come_before_modules(telemetry: Telemetry, budget: int, stages: int) -> None:
    """Modules leave room for the stages of their pass; a budget that is too small for both is kept, and what is missing counted."""
    model = models.llava()
    telemetry.instrument(model, modules="all", max_spans_per_trace=budget)
    model.generate(**_picture(), **OPTIONS)
    telemetry.check()
    assert len(_stages(telemetry)) == stages
    assert len(telemetry.spans()) <= budget
    assert telemetry.only()[semconv.SPANS_DROPPED] > 0


def test_a_stage_that_fails(telemetry: Telemetry) -> None:
    """The exception passes, its stage has failed, and the one before has not."""
    model = models.llava()
    telemetry.instrument(model, modules="none")
    raised = ZeroDivisionError("theirs")

    def fail(*_: Any, **__: Any) -> None:
        raise raised

    model.model.multi_modal_projector.forward = fail
    with pytest.raises(ZeroDivisionError) as caught:
        model.generate(**_picture(), **OPTIONS)
    assert caught.value is raised
    telemetry.check()
    failed = {span.name: (span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.spans() if semconv.STAGE_NAME in (span.attributes or {})}
    assert failed == {"vision_encode": None, "fusion": "ZeroDivisionError"}
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}


@pytest.mark.parametrize("name", ["acquire_stages", "release_stages"])
def test_observers_that_fail(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, contained: list[guard.Swallowed], name: str
) -> None:
    """An error of ours at the stages changes no output and leaves nothing on the modules."""
    model = models.llava()
    want = model.generate(**_picture(), **OPTIONS)
    handle = telemetry.instrument(model)

    def fail(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(ModuleObservers, name, fail)
    assert torch.equal(model.generate(**_picture(), **OPTIONS), want)
    with torch.no_grad():
        model(**_picture())
    telemetry.check(complaints=True)
    assert {(error.kind, str(error).splitlines()[-1]) for error in contained} == {("RuntimeError", "RuntimeError: ours")}
    contained.clear()
    handle.uninstrument()
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}


def test_stages_are_measured_where_no_detail_is_kept(telemetry: Telemetry) -> None:
    """Metrics cover all recorded requests, whatever ``keep`` says."""
    model = models.llava()
    telemetry.instrument(model, keep="errors")
    model.generate(**_picture(), **OPTIONS)
    assert len(telemetry.spans()) == 1
    (encode, fusion) = telemetry.metrics()[semconv.M_STAGE_DURATION]
    assert (encode[1], fusion[1]) == (1, 1)


# -------------------------------------------------------------------------------------------------- changes, threads, devices
def test_an_encoder_that_is_replaced(telemetry: Telemetry) -> None:
    """The next request observes the new one."""
    model, other = models.llava(), models.llava(1)
    telemetry.instrument(model, modules="none")
    model.model.vision_tower = other.model.vision_tower
    model.generate(**_picture(), **OPTIONS)
    assert _stages(telemetry) == FOUND


def test_modules_of_another_request_do_not_count_as_stages(telemetry: Telemetry) -> None:
    """While another thread records every module, a step without module spans shows its stages and nothing else."""
    model = models.llava()
    inside, done = threading.Event(), threading.Event()
    telemetry.instrument(model)

    def wait(*_: Any) -> None:
        if threading.current_thread() is thread:
            inside.set()
            assert done.wait(60)

    model.model.language_model.register_forward_pre_hook(wait)
    thread = threading.Thread(target=lambda: model.generate(**_picture(), **OPTIONS))
    thread.start()
    assert inside.wait(60)
    ids = _picture()
    # Without a cache each step encodes the image again. Of the steps, 0, 1, 2 and 4 are recorded with their modules.
    given = {**ids, "use_cache": False}
    try:
        with torch.no_grad():
            model.generate(**given, **{**OPTIONS, "max_new_tokens": 8, "min_new_tokens": 8})
    finally:
        done.set()
        thread.join(60)
    telemetry.check()
    rows: list[Any] = [dict(span.attributes or {}) for span in telemetry.modules()]
    third = [row for row in rows if row.get(semconv.STEP_INDEX) == 3 and semconv.STAGE_NAME not in row]
    assert third == []


class _Ears(nn.Module):
    """A model of one's own with an encoder, a projector and words."""

    def __init__(self) -> None:
        super().__init__()
        self.audio_encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.connector = nn.Linear(16, 12)
        self.words = nn.Embedding(20, 12)
        self.head = nn.Linear(12, 20)

    def forward(self, ids: Any, sound: Any) -> Any:
        """Scores of the words and of the sound."""
        return self.head(torch.cat([self.connector(self.audio_encoder(sound)), self.words(ids)], dim=1))


def test_a_model_of_ones_own(telemetry: Telemetry) -> None:
    """Names that say what a module is are enough; tokens are not known without placeholders."""
    model = _Ears()
    telemetry.instrument(model, modules="none")
    model(torch.ones(2, 3, dtype=torch.long), torch.randn(2, 5, 8))
    assert _stages(telemetry) == [("audio_encode", "audio_encoder", None), ("fusion", "connector", None)]


def test_an_encoder_alone_is_no_stage(telemetry: Telemetry) -> None:
    """Where nothing but the encoder is there, it is the model."""
    model = nn.ModuleDict({"vision_model": nn.Linear(4, 4), "projector": nn.Linear(4, 2)})
    model.forward = lambda x: model["projector"](model["vision_model"](x))
    telemetry.instrument(model)
    model(torch.randn(2, 4))
    assert _stages(telemetry) == []
    assert len(telemetry.modules()) == 2


def test_a_stage_with_hooks_of_the_program_after_a_compilation(telemetry: Telemetry) -> None:
    """Compiled code may depend on their number, so ours stay off, and the request says it."""
    model, calls = models.llava(), []
    model.model.vision_tower.register_forward_hook(lambda *_: calls.append(1))
    telemetry.instrument(model, modules="none")
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    model.generate(**_picture(), **OPTIONS)
    torch._dynamo.reset()
    telemetry.check()
    assert calls == [1]
    assert _stages(telemetry) == FOUND[1:]
    assert telemetry.only()[semconv.UNOBSERVED] == "stages: hooked"


def test_stages_have_the_time_of_the_device(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured by events as steps are, also of an encoder that runs before the first pass."""
    cuda = FakeCuda(pointers=True)
    monkeypatch.setattr(device_clock, "uses_cuda", lambda: True)
    monkeypatch.setattr(device_clock, "torch_cuda", cuda.torch_cuda)
    monkeypatch.setattr(device_clock, "load_driver", lambda devices: cuda)
    monkeypatch.setattr(device_clock, "cuda_devices", lambda model: (0,))
    for make, given in ((models.llava, _picture), (functools.partial(multimodal.qwen2_vl), functools.partial(multimodal.qwen_picture, 1))):
        model = make()
        telemetry.instrument(model, modules="none")
        model.generate(**given(), **OPTIONS)
        model(**given())
    telemetry.check()
    spans = [span.attributes or {} for span in telemetry.spans() if semconv.STAGE_NAME in (span.attributes or {})]
    assert len(spans) == 8
    assert [semconv.DEVICE_TIME in facts for facts in spans] == [True] * 8
