"""``handle.pause()``: what is not recorded, what stays, what a request under way loses, and what the counts are."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry


def _forward(model: nn.Module) -> None:
    with torch.no_grad():
        model(models.prompt())


def _generate(model: Any, **arguments: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.generate(models.prompt(), do_sample=False, max_new_tokens=3, min_new_tokens=3, **arguments)
    return found


def _hooks(model: nn.Module) -> int:
    tables = [(*module._forward_hooks.values(), *module._forward_pre_hooks.values()) for module in model.modules()]
    slots = [module.__dict__.get("_compiled_call_impl") for module in model.modules()]
    return sum(map(len, tables)) + sum(slot is not None for slot in slots)


class _Waiting(nn.Module):
    """Waits in its forward pass until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inside, self.go_on = threading.Event(), threading.Event()

    def forward(self, value: Tensor) -> Tensor:
        self.inside.set()
        self.go_on.wait(60)
        found: Tensor = self.linear(value)
        return found


class _CallsItself(nn.Module):
    """Has a call of its own, so that torch looks at no slot."""

    before: Any = staticmethod(lambda: None)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return super()._call_impl(*args, **kwargs)

    __call__ = _call_impl

    def forward(self, value: Tensor) -> Tensor:
        self.before()
        return value


# ------------------------------------------------------------------------------------------------------------ paused
@pytest.mark.parametrize("call", [_forward, _generate], ids=["forward", "generate"])
def test_nothing_is_recorded_while_paused(telemetry: Telemetry, call: Any) -> None:
    """No span; after ``resume()`` there is one."""
    model = models.llama()
    handle = telemetry.instrument(model)
    handle.pause()
    call(model)
    assert telemetry.spans() == []
    handle.resume()
    call(model)
    assert len(telemetry.roots()) == 1
    telemetry.check()


def test_no_metric_of_requests_changes_while_paused(telemetry: Telemetry) -> None:
    """What metrics of requests say is the same before and after calls of a paused model."""
    model = models.llama()
    handle = telemetry.instrument(model)
    _generate(model)
    inferspan.flush()
    before = telemetry.metrics()
    assert before != {}
    handle.pause()
    _generate(model)
    _forward(model)
    inferspan.flush()
    after = telemetry.metrics()
    # An old SDK exports no gauge again that has got no value since.
    assert set(before) - set(after) <= {semconv.M_KV_CACHE}
    assert after == {name: before[name] for name in after}


def test_nothing_is_on_a_paused_model(telemetry: Telemetry) -> None:
    """No hook, and no function in the slot of a call; ``resume()`` brings back what was there."""
    model = models.llama()
    handle = telemetry.instrument(model)
    attached = _hooks(model)
    handle.pause()
    assert _hooks(model) == 0
    assert handle.status().root_hooks == 0
    handle.resume()
    assert _hooks(model) == attached


def test_a_pair_of_hooks_goes_as_well(telemetry: Telemetry) -> None:
    """Of a class whose calls cannot be replaced, also when the pause comes inside a pass."""
    model = _CallsItself()
    handle = telemetry.instrument(model, modules="none")
    assert _hooks(model) == 2
    model.before = handle.pause
    model(torch.zeros(1, 4))
    assert len(telemetry.forwards()) == 1
    assert _hooks(model) == 0
    handle.resume()
    assert _hooks(model) == 2
    telemetry.check()


def test_status_names_the_pause(telemetry: Telemetry) -> None:
    """The reason why nothing is recorded is among those of ``handle.status()``."""
    model = models.llama()
    handle = telemetry.instrument(model)
    handle.pause()
    assert any(reason.startswith("paused") for reason in handle.status().unobserved)
    handle.resume()
    assert not any(reason.startswith("paused") for reason in handle.status().unobserved)


def test_stages_and_events_of_a_paused_model_do_nothing(telemetry: Telemetry) -> None:
    """Where nothing else is recorded, a stage is the object that does nothing."""
    model = models.llama()
    handle = telemetry.instrument(model)
    handle.pause()
    with inferspan.stage("paused") as stage:
        inferspan.event("paused")
    assert stage.duration is None
    assert telemetry.spans("paused") == []
    handle.resume()
    with inferspan.stage("resumed"):
        pass
    assert len(telemetry.spans("resumed")) == 1


def test_generation_by_hand_is_not_recorded_while_paused(telemetry: Telemetry) -> None:
    """A loop of the user around a paused model is no request."""
    model = models.llama()
    handle = telemetry.instrument(model)
    handle.pause()
    with inferspan.generation(model) as generation, torch.no_grad(), generation.prefill():
        logits = model(models.prompt()).logits
        generation.token(logits, logits[:, -1].argmax(-1))
    assert telemetry.spans() == []
    telemetry.check()


def test_outputs_and_random_numbers_are_those_of_the_model(telemetry: Telemetry) -> None:
    """Paused or not, the tokens are the same."""
    model = models.llama()
    plain = _generate(model)
    handle = telemetry.instrument(model)
    handle.pause()
    assert torch.equal(_generate(model), plain)
    handle.resume()
    assert torch.equal(_generate(model), plain)


# ---------------------------------------------------------------------------------------------------- requests under way
def test_a_forward_pass_under_way_is_recorded_to_its_end(telemetry: Telemetry) -> None:
    """With its modules; the observers go when it has ended."""
    model = _Waiting()
    handle = telemetry.instrument(model, modules=["linear"])
    thread = threading.Thread(target=model, args=(torch.zeros(1, 4),))
    thread.start()
    assert model.inside.wait(60)
    handle.pause()
    assert not handle.recording
    model.go_on.set()
    thread.join(60)
    assert len(telemetry.forwards()) == 1
    assert len(telemetry.modules()) == 1
    assert _hooks(model) == 0
    telemetry.check()


def test_a_generate_under_way_is_recorded_to_its_end(telemetry: Telemetry) -> None:
    """All of its steps, although it was paused in the first one; the next call is not recorded."""
    model = models.llama()
    handle = telemetry.instrument(model, steps="all")

    class Pauses:
        """A streamer that pauses with the first token."""

        def put(self, value: Tensor) -> None:
            handle.pause()

        def end(self) -> None:
            pass

    _generate(model, streamer=Pauses())
    assert telemetry.only()[semconv.OUTPUT_TOKENS] == 3
    assert len(telemetry.steps()) == 3
    assert _hooks(model) == 0
    _generate(model)
    assert len(telemetry.requests()) == 1
    telemetry.check()


def test_events_inside_a_request_under_way_are_recorded(telemetry: Telemetry) -> None:
    """Also after the pause."""
    model = models.llama()
    handle = telemetry.instrument(model)

    class Notes:
        """A streamer that pauses, and has an event recorded."""

        def put(self, value: Tensor) -> None:
            handle.pause()
            inferspan.event("noted")

        def end(self) -> None:
            pass

    _generate(model, streamer=Notes())
    (request,) = telemetry.requests()
    assert "noted" in [event.name for event in request.events]


def test_a_paused_model_inside_a_recorded_one_is_not_recorded(telemetry: Telemetry) -> None:
    """The switch is that of one model: the model around it is recorded as before."""
    inner = nn.Linear(4, 4)
    outer = nn.Sequential(inner)
    telemetry.instrument(outer, modules="none")
    handle = telemetry.instrument(inner, modules="none")
    outer(torch.zeros(1, 4))
    assert len(telemetry.forwards()) == 2
    handle.pause()
    outer(torch.zeros(1, 4))
    assert len(telemetry.forwards()) == 3
    telemetry.check()


# ------------------------------------------------------------------------------------------------------------ the switch
def test_pause_holds_for_all_handles_of_a_model(telemetry: Telemetry) -> None:
    """Whatever handle is used."""
    model = models.llama()
    first, second = telemetry.instrument(model), inferspan.instrument(model)
    first.pause()
    assert second.recording is False
    second.resume()
    assert first.recording is True
    second.uninstrument()
    assert second.recording is False
    assert first.recording is True


def test_pause_and_resume_are_idempotent(telemetry: Telemetry) -> None:
    """Two calls of each are one."""
    model = models.llama()
    handle = telemetry.instrument(model)
    handle.resume()
    assert handle.recording is True
    handle.pause()
    handle.pause()
    handle.resume()
    assert handle.recording is True
    _forward(model)
    assert len(telemetry.forwards()) == 1


def test_a_block_pauses_and_resumes(telemetry: Telemetry) -> None:
    """Also after an exception; inside a pause it resumes nothing."""
    model = models.llama()
    handle = telemetry.instrument(model)
    seen = []

    def fail() -> None:
        with handle.paused():
            seen.append(handle.recording)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [False]
    assert handle.recording is True
    handle.pause()
    with handle.paused():
        pass
    assert handle.recording is False


def test_settings_and_totals_stay(telemetry: Telemetry) -> None:
    """Settings can change meanwhile, and totals go on where they were."""
    model = models.llama()
    handle = telemetry.instrument(model, modules="none")
    _generate(model)
    handle.pause()
    handle.set(modules=["lm_head"])
    _generate(model)
    assert handle.summary().requests == 1
    handle.resume()
    assert handle.settings.modules == ("lm_head",)
    _generate(model)
    assert handle.summary().requests == 2
    assert telemetry.modules() != []


def test_samplers_go_on(telemetry: Telemetry) -> None:
    """Readings of the host arrive while the model is paused."""
    model = nn.Linear(4, 4)
    handle = inferspan.instrument(
        model, tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider, nvml=False, sampler_interval=1
    )
    try:
        handle.pause()
        assert telemetry.metric_sum(semconv.M_PROCESS_MEMORY) > 0
        assert "inferspan-samplers" in [thread.name for thread in threading.enumerate()]
    finally:
        handle.uninstrument()


def test_threads_may_pause_and_resume_while_others_run_the_model(telemetry: Telemetry) -> None:
    """Each request is recorded whole or not at all, and nothing fails."""
    model = models.llama()
    handle = telemetry.instrument(model, modules=["lm_head"], steps="all")
    done = threading.Event()

    def switch() -> None:
        while not done.is_set():
            handle.pause()
            handle.resume()

    thread = threading.Thread(target=switch)
    thread.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: _generate(model), range(40)))
    done.set()
    thread.join(60)
    requests = telemetry.requests()
    assert len(telemetry.steps()) == 3 * len(requests)
    assert handle.summary().requests == len(requests)
    handle.resume()
    _generate(model)
    assert len(telemetry.requests()) == len(requests) + 1
    telemetry.check()


def test_a_handle_of_nothing_takes_every_call() -> None:
    """With ``enabled=False`` there is nothing to pause."""
    handle = inferspan.instrument(nn.Linear(4, 4), enabled=False)
    assert handle.recording is False
    assert handle.pause() == (0, 0, 0)
    handle.resume()
    with handle.paused():
        pass
    assert handle.flush() is True


# ------------------------------------------------------------------------------------------------------------ the counts
def test_pause_returns_what_was_recorded_since_the_last_resume(telemetry: Telemetry) -> None:
    """Requests, spans as the exporter got them, and events as in the summary."""
    model = models.llama()
    handle = telemetry.instrument(model)
    _generate(model)
    _forward(model)
    counts = handle.pause()
    assert counts.requests == 2
    assert counts.spans == len(telemetry.spans())
    assert counts.events == handle.summary().total_events
    assert handle.pause() == counts
    before = len(telemetry.spans())
    handle.resume()
    _forward(model)
    counts = handle.pause()
    assert counts.requests == 1
    assert counts.spans == len(telemetry.spans()) - before


def test_stages_count_as_spans(telemetry: Telemetry) -> None:
    """A stage is one span."""
    model = nn.Linear(4, 4)
    handle = telemetry.instrument(model)
    with inferspan.stage("one"):
        pass
    assert handle.pause() == (0, 1, handle.summary().total_events)


def test_a_failed_request_counts(telemetry: Telemetry) -> None:
    """It is recorded, flushed and counted."""
    model = models.llama()
    handle = telemetry.instrument(model)
    with pytest.raises(TypeError):
        model.generate(models.prompt(), max_new_tokens=3, logits_processor=3)
    counts = handle.pause()
    assert counts.requests == 1
    assert counts.spans == len(telemetry.spans())
    assert handle.flush(30) is True


def test_pause_logs_one_line(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """With the counts; the second call logs none."""
    model = models.llama()
    handle = telemetry.instrument(model, modules="none", steps="none")
    _forward(model)
    with caplog.at_level(logging.INFO, "inferspan"):
        handle.pause()
        handle.pause()
    assert [record.getMessage() for record in caplog.records] == ["paused: 1 request, 1 span, 1 event recorded since the last start"]


def test_a_forked_child_is_paused_like_its_parent(telemetry: Telemetry) -> None:
    """And can resume."""
    model = nn.Linear(4, 4)
    handle = telemetry.instrument(model)
    handle.pause()
    child = os.fork()
    if child == 0:
        paused = not handle.recording
        handle.resume()
        os._exit(0 if paused and handle.recording else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
