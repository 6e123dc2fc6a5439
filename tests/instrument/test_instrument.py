"""``instrument()`` end to end: one call attaches everything, the last handle takes it off, and nothing else changes."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from torch import nn

import inferspan
from inferspan import SettingsError
from tests.cases.models import llama, prompt
from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("one_thread")


def _state(model: nn.Module) -> tuple[Any, ...]:
    kind = type(model)
    hooks = [(len(module._forward_pre_hooks), len(module._forward_hooks)) for module in model.modules()]
    return dict(kind.__dict__), dict(model.__dict__), hooks


def _generate(model: Any, **options: Any) -> Any:
    return model.generate(prompt(1, 5), **{"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, **options})


def test_handles_are_counted(telemetry: Telemetry) -> None:
    """A model that is instrumented twice has one instrumentation; only the last ``uninstrument()`` leaves no trace of it."""
    model = llama()
    before = _state(model)
    first, second = telemetry.instrument(model, modules="none"), telemetry.instrument(model, modules="none")
    _generate(model)
    first.uninstrument()
    first.uninstrument()
    _generate(model)
    second.uninstrument()
    _generate(model)
    assert len(telemetry.requests()) == 2
    assert (first.summary(), first.summary().requests) == (second.summary(), 2)
    assert _state(model) == before
    telemetry.check()


def test_conflicts_leave_the_first_alone(telemetry: Telemetry) -> None:
    """Other settings or providers on an instrumented model are an error that names them; the same ones, or none, are not."""
    model = llama()
    telemetry.instrument(model, modules="none")
    with pytest.raises(SettingsError, match=r"instrumented already with modules='none' \(now 'all'\)"):
        telemetry.instrument(model, modules="all")
    with pytest.raises(SettingsError, match="another tracer_provider"):
        inferspan.instrument(model, tracer_provider=TracerProvider(shutdown_on_exit=False))
    with inferspan.instrument(model) as handle:
        assert handle.settings.modules == "none"
    _generate(model)
    assert len(telemetry.requests()) == 1
    telemetry.check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": ["nothing.*"]}, r"'modules': pattern 'nothing\.\*' matches no module"),
        ({"modules": "layer"}, "'modules' cannot be 'layer': use"),
        ({"moduls": "all"}, "unknown inferspan setting 'moduls'"),
        ({"session_file": "missing/directory/x.jsonl"}, "'session_file' cannot be 'missing/directory/x.jsonl'"),
        ({"settings": {"modules": "all"}}, "settings must be an inferspan.Settings, not dict"),
    ],
)
def test_wrong_settings(options: dict[str, Any], message: str, telemetry: Telemetry) -> None:
    """A wrong setting is one error, and the model and its class are as they were."""
    model = llama()
    before = _state(model)
    with pytest.raises(SettingsError, match=message):
        telemetry.instrument(model, **options)
    assert _state(model) == before
    _generate(model)
    assert telemetry.spans() == []


def test_wrong_environment_is_a_warning(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Patterns of the environment that match nothing in this model, and a settings file that is not there: a warning each, and it works."""
    monkeypatch.setenv("INFERSPAN_MODULES", "nomatch*")
    monkeypatch.setenv("INFERSPAN_CONFIG", "no/such/file.yaml")
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    telemetry.instrument(model)
    telemetry.instrument(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    model(torch.ones(1, 2))
    assert "forward Sequential" in {span.name for span in telemetry.spans()}
    told = [record.getMessage().split("=")[0].split(" ")[0] for record in caplog.records if record.name == "inferspan"]
    assert sorted(told) == ["INFERSPAN_CONFIG", "INFERSPAN_MODULES"]


@pytest.mark.parametrize("name", ["modules", "numerics", "memory", "attention", "gradients", "control_flow"])
def test_a_pattern_of_the_environment_never_raises(
    name: str, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each setting that selects modules: where its variable matches none, that is one warning, and calls are recorded."""
    monkeypatch.setenv(f"INFERSPAN_{name.upper()}", "nomatch*")
    telemetry.instrument(model := nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    model(torch.ones(1, 2))
    assert len(telemetry.forwards()) == 1
    assert [record.getMessage().split(" ")[0] for record in caplog.records if record.name == "inferspan"] == [f"INFERSPAN_{name.upper()}"]


def test_all_patterns_of_the_environment_at_once(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that need each other fall back together, in whatever order they are found wrong."""
    for name in ("modules", "numerics", "memory", "attention", "gradients", "control_flow"):
        monkeypatch.setenv(f"INFERSPAN_{name.upper()}", "nomatch*")
    for name in ("numerics_inputs", "input_stats", "output_stats", "attention_maps"):
        monkeypatch.setenv(f"INFERSPAN_{name.upper()}", "true")
    monkeypatch.setenv("INFERSPAN_ON_NONFINITE", "raise")
    telemetry.instrument(model := nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    model(torch.ones(1, 2))
    assert len(telemetry.forwards()) == 1


@pytest.mark.parametrize("thing", [3, "model", None, object(), [nn.Linear(2, 2)], SimpleNamespace(model=3)])
def test_no_model(thing: object) -> None:
    """What is no module and holds none is a type error."""
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module"):
        inferspan.instrument(thing)


def test_pipeline(telemetry: Telemetry) -> None:
    """A pipeline stands for the model and the tokenizer that it holds."""

    class Tokenizer:
        def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
            return "text"

    pipeline = SimpleNamespace(model=llama(), tokenizer=Tokenizer())
    telemetry.instrument(pipeline, capture_content="SPAN_ONLY")
    _generate(pipeline.model)
    assert '"content":"text"' in telemetry.only()["gen_ai.input.messages"]


def test_several_models_from_several_threads(telemetry: Telemetry) -> None:
    """Models that run at the same time each get their own requests, whole and apart."""
    models = [llama(number) for number in range(3)]
    for number, model in enumerate(models):
        telemetry.instrument(model, model_name=f"model-{number}")

    def run(model: Any) -> None:
        for _ in range(3):
            _generate(model)

    threads = [threading.Thread(target=run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [span.name for span in telemetry.requests()]
    assert sorted(names) == sorted(f"text_completion model-{number}" for number in range(3) for _ in range(3))
    assert telemetry.usage() == [(5, 4)] * 9
    telemetry.check()


def test_plain_module(telemetry: Telemetry) -> None:
    """Any module has its forward passes recorded, failed ones as well, and the exception is the very same."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    handle = telemetry.instrument(module, modules="all")
    module(torch.ones(2, 4))
    with pytest.raises(RuntimeError) as caught:
        module(torch.ones(2, 5))
    assert [(span.name, span.status.is_ok) for span in telemetry.roots()] == [("forward Sequential", True), ("forward Sequential", False)]
    assert handle.summary().forwards == 2 and "shapes cannot be multiplied" in str(caught.value)
    telemetry.check()


def test_request_span_is_bounded(telemetry: Telemetry) -> None:
    """A request span has far fewer attributes than the SDK's limit, with everything switched on."""
    model = llama()
    telemetry.instrument(model, compat_vllm_latency=True, modules="all", output_stats=True, semconv="dup")
    _generate(model, do_sample=True, temperature=0.7, top_k=5, top_p=0.9, num_return_sequences=2, repetition_penalty=1.1)
    (request,) = telemetry.requests()
    assert len(request.attributes or {}) < 96 and request.dropped_attributes == 0
    assert all(len(span.attributes or {}) < 96 for span in telemetry.spans())


@pytest.mark.parametrize("sampled", [True, False])
def test_global_random_is_not_touched(sampled: bool) -> None:
    """Seeded programs draw the same numbers with us as without, on a host's provider with the SDK's own generator."""
    telemetry = Telemetry() if sampled else Telemetry(ALWAYS_OFF)
    model = llama()
    telemetry.instrument(model)
    random.seed(5)
    before = random.getstate()
    _generate(model)
    model(prompt(1, 4))
    telemetry.metric_sum("gen_ai.client.token.usage")
    assert len(telemetry.spans()) == (0 if not sampled else len(telemetry.spans()))
    assert random.getstate() == before
    telemetry.close()


def test_seeding_does_not_repeat_trace_ids(telemetry: Telemetry) -> None:
    """Two runs with one seed are two traces."""
    model = llama()
    telemetry.instrument(model, modules="none")
    for _ in range(2):
        random.seed(42)
        _generate(model)
    assert len({span.context.trace_id for span in telemetry.requests() if span.context}) == 2


def test_ranks(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a launcher the request says which rank it ran on, and the size of the job is a metric."""
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    model = llama()
    telemetry.instrument(model)
    _generate(model)
    attributes = telemetry.only()
    assert [attributes[f"inferspan.distributed.{name}"] for name in ("rank", "local_rank", "world_size")] == [3, 1, 8]
    assert telemetry.metric_sum("inferspan.distributed.world_size") == 8


def test_overhead_and_errors_are_told(telemetry: Telemetry, contained: list[Any]) -> None:
    """Our own time is a small part of the request's, and contained errors are a metric by place."""
    from inferspan import guard

    model = llama()
    telemetry.instrument(model)
    with guard.contain("place of the test"):
        raise ValueError
    contained.clear()
    _generate(model, max_new_tokens=40, min_new_tokens=40)
    (request,) = telemetry.requests()
    assert request.end_time is not None and request.start_time is not None
    assert 0 < telemetry.metric_sum("inferspan.telemetry.overhead") < (request.end_time - request.start_time) / 1e9
    assert telemetry.metric_sum("inferspan.telemetry.errors", **{"inferspan__error__place": "place of the test"}) == 1


def test_collected_model(telemetry: Telemetry) -> None:
    """A model dies as without us, its handle still knows the totals, and the next ``instrument()`` starts from nothing."""
    module = sys.modules["inferspan.instrument"]
    model = llama()
    handle = telemetry.instrument(model)
    _generate(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and handle.summary().requests == 1
    telemetry.instrument(other := llama())
    assert {entry.target.model for entry in module._instrumentations.values()} >= {other}
    assert all(entry.target.model is not None for entry in module._instrumentations.values())
    handle.uninstrument()
    _generate(other)
    assert len(telemetry.requests()) == 2


def test_uninstrument_inside_a_call(telemetry: Telemetry) -> None:
    """A handle that is let go of while its model generates ends that request well and leaves nothing."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    model = llama()
    before = _state(model)
    handle = telemetry.instrument(model)

    class Leaving(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
            handle.uninstrument()
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    expected = _generate(llama())
    assert torch.equal(_generate(model, stopping_criteria=StoppingCriteriaList([Leaving()])), expected)
    assert _state(model) == before
    assert len(telemetry.requests()) == 1
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_shut_down_early(telemetry: Telemetry) -> None:
    """Providers that the host has shut down swallow what comes later; the model does not notice."""
    model = llama()
    telemetry.instrument(model)
    expected = _generate(llama())
    telemetry.tracer_provider.shutdown()
    telemetry.meter_provider.shutdown()
    assert torch.equal(_generate(model), expected)


def test_failure_of_ours_at_the_start(telemetry: Telemetry, contained: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that we fail to follow runs all the same, its span ends, and the next one is whole."""
    from inferspan.capture.generate.step_modules import StepModules

    model = llama()
    telemetry.instrument(model, modules="none")
    with monkeypatch.context() as patch:
        patch.setattr(StepModules, "choose", lambda self, index: 1 / 0)
        expected = _generate(llama())
        assert torch.equal(_generate(model), expected)
        assert trace.get_current_span() is trace.INVALID_SPAN
    _generate(model)
    assert {(error.place, error.kind) for error in contained} == {("start of generate()", "ZeroDivisionError")}
    contained.clear()
    assert len(telemetry.requests()) == 2 and telemetry.metric_sum("inferspan.generate.active") == 0
    telemetry.check(complaints=True)


def test_uninstrument_takes_all_handles(telemetry: Telemetry) -> None:
    """``uninstrument(model)`` leaves no trace however often a cell ran; handles of before do nothing to what comes after."""
    model = llama()
    before = _state(model)
    old = [telemetry.instrument(model, modules="none") for _ in range(3)]
    assert "detached" not in repr(old[0])
    assert inferspan.uninstrument(model) is True
    assert _state(model) == before
    assert inferspan.uninstrument(model) is False
    assert repr(old[0]) == "<inferspan.Handle: detached>"
    telemetry.instrument(model, modules="all")
    for handle in old:
        handle.uninstrument()
    _generate(model)
    assert len(telemetry.requests()) == 1
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module"):
        inferspan.uninstrument("model")
    assert inferspan.uninstrument(SimpleNamespace(model=model)) is True


def test_first_forward_is_a_warm_up(telemetry: Telemetry) -> None:
    """The first forward pass of a model says that it was one, the second does not."""
    model = nn.Linear(4, 4)
    telemetry.instrument(model)
    model(torch.zeros(1, 4))
    model(torch.zeros(1, 4))
    assert [dict(span.attributes or {}).get("inferspan.warmup") for span in telemetry.forwards()] == [True, None]
