"""``generate()`` called in unusual ways: inside itself, in threads, with streamers, through wrappers, and detached while it runs."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GenerationMixin, StoppingCriteria, StoppingCriteriaList

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

GREEDY: dict[str, Any] = {"do_sample": False}


def _exactly(tokens: int, **more: Any) -> dict[str, Any]:
    return {**GREEDY, "max_new_tokens": tokens, "min_new_tokens": tokens, **more}


def _generate(model: Any, *arguments: Any, **options: Any) -> Any:
    with torch.no_grad():
        return model.generate(*arguments, **options)


def _after(rows: Tensor, width: int, eos: int = 2) -> list[int]:
    """Tokens of each row after the prompt, up to and including the first end token."""
    counts = []
    for row in rows[:, width:].tolist():
        counts.append(row.index(eos) + 1 if eos in row else len(row))
    return counts


# --------------------------------------------------------------------------------------------------------------- unusual ways of calling
def test_misspelt_arguments_are_still_refused(telemetry: Telemetry) -> None:
    """Arguments that transformers does not know are rejected with the message that it has without us, and the request ends as an error."""
    model = models.llama()
    with pytest.raises(ValueError, match="model_kwargs") as plain:
        _generate(model, models.prompt(), max_new_token=3)
    telemetry.instrument(model)
    with pytest.raises(ValueError, match="model_kwargs") as seen:
        _generate(model, models.prompt(), max_new_token=3)
    assert str(plain.value) == str(seen.value)
    telemetry.check()
    assert telemetry.only()[semconv.ERROR_TYPE] == "ValueError"
    assert telemetry.usage() == [(6, None)]


def test_custom_generate(telemetry: Telemetry) -> None:
    """A decoding loop of the user's own is one request; what it returns passes through, known or not."""

    def loop(model: Any, input_ids: Tensor, generation_config: Any = None, **kwargs: Any) -> Any:
        for _ in range(3):
            logits = model(input_ids).logits[:, -1]
            input_ids = torch.cat([input_ids, logits.argmax(-1, keepdim=True)], dim=1)
        return {"ids": input_ids} if kwargs.get("odd") else input_ids

    model = models.llama()
    telemetry.instrument(model)
    got = _generate(model, models.prompt(1, 6), custom_generate=loop, max_new_tokens=3)
    telemetry.check()
    assert len(telemetry.roots()) == 1
    assert telemetry.usage() == [(6, sum(_after(got, 6)))]


def test_generate_inside_generate(telemetry: Telemetry) -> None:
    """A model that retries through its own generate() has nested requests, which are not counted."""
    model = models.llama()
    telemetry.instrument(model)

    class Retry(StoppingCriteria):
        done = False

        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
            if not self.done:
                self.done = True
                model.generate(models.prompt(1, 3), **_exactly(2))
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    _generate(model, models.prompt(1, 6), stopping_criteria=StoppingCriteriaList([Retry()]), **_exactly(4))
    telemetry.check()
    assert telemetry.usage() == [(6, 4)]
    (inner,) = telemetry.requests(nested=True)
    assert (inner.attributes or {})[semconv.OUTPUT_TOKENS] == 2
    assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == 4
    assert len(telemetry.roots()) == 1


class Streamer:
    """Collects what it is put."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ended = False

    def put(self, value: Any) -> None:
        self.seen.append(value)

    def end(self) -> None:
        self.ended = True


def test_streamer(telemetry: Telemetry) -> None:
    """The streamer gets what it would get without us, and the first token's time covers the prefill."""
    model = models.llama()
    telemetry.instrument(model)
    streamer = Streamer()
    _generate(model, models.prompt(1, 6), streamer=streamer, **_exactly(4))
    telemetry.check()
    assert len(streamer.seen) == 5 and streamer.ended
    attributes = telemetry.only()
    (prefill,) = telemetry.spans(semconv.SPAN_PREFILL)
    assert attributes[semconv.REQUEST_STREAM] is True
    assert attributes[semconv.TIME_TO_FIRST_CHUNK] == attributes[semconv.TTFT]
    assert attributes[semconv.TTFT] == pytest.approx(((prefill.end_time or 0) - (prefill.start_time or 0)) / 1e9, abs=2e-6)


def test_streamer_that_fails(telemetry: Telemetry) -> None:
    """An error of the streamer's ends the request as an error, and passes."""
    model = models.llama()
    telemetry.instrument(model)

    class Broken(Streamer):
        def put(self, value: Any) -> None:
            super().put(value)
            if len(self.seen) == 3:
                raise BrokenPipeError("reader is gone")

    with pytest.raises(BrokenPipeError):
        _generate(model, models.prompt(1, 6), streamer=Broken(), **_exactly(6))
    _generate(model, models.prompt(1, 6), **_exactly(2))
    telemetry.check()
    assert [(span.attributes or {}).get(semconv.ERROR_TYPE) for span in telemetry.requests()] == ["BrokenPipeError", None]
    # Transformers 4 asks the stopping criteria, which know the length, after it has streamed the token.
    loop = inspect.getsource(GenerationMixin._sample)
    produced = 1 if "streamer.put(next" in loop and loop.index("streamer.put(next") < loop.index("stopping_criteria(input_ids") else 2
    assert telemetry.usage() == [(6, produced), (6, 2)]


def test_generate_in_a_thread_that_nobody_reads(telemetry: Telemetry) -> None:
    """The span belongs to generate() and ends with it, though the reader has gone."""
    model = models.llama()
    telemetry.instrument(model)
    thread = threading.Thread(target=lambda: _generate(model, models.prompt(1, 6), streamer=Streamer(), **_exactly(6)))
    thread.start()
    thread.join()
    telemetry.check()
    assert telemetry.usage() == [(6, 6)]


class Yielding(nn.Module):
    """A model whose generate() is a generator function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)

    def generate(self, hidden: Tensor, times: int = 3) -> Any:
        for _ in range(times):
            hidden = self(hidden)
            yield hidden


def test_generator_as_result(telemetry: Telemetry) -> None:
    """A generator goes to its caller unread, and nothing stays current or open while it is suspended or abandoned."""
    model = Yielding()
    telemetry.instrument(model)
    result = model.generate(torch.ones(1, 4))
    next(result)
    telemetry.check()
    assert len(list(result)) == 2
    next(model.generate(torch.ones(1, 4)))
    telemetry.check()
    assert telemetry.usage() == [(None, None)] * 2


class Wrapper(nn.Module):
    """Delegates generate() as PEFT does."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_model = base

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.generate(*args, **kwargs)  # type: ignore[operator]


class Bare(nn.Module):
    """Hands out what the wrapped model has."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_model = base

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)


@pytest.mark.parametrize("kind", [Wrapper, Bare])
@pytest.mark.parametrize("seen", ["wrapper", "base", "both"])
def test_wrappers(telemetry: Telemetry, kind: Any, seen: str) -> None:
    """Wrapper, wrapped model or both instrumented: one root and one usage sample for each call of the user's."""
    base = models.llama()
    wrapper = kind(base)
    if seen in ("wrapper", "both"):
        telemetry.instrument(wrapper)
    if seen in ("base", "both"):
        telemetry.instrument(base)
    _generate(wrapper, models.prompt(1, 6), **_exactly(4))
    telemetry.check()
    assert telemetry.usage() == [(6, 4)]
    assert len(telemetry.roots()) == 1
    assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == 4


# ------------------------------------------------------------------------------------------------------------- detaching while it runs
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same thread", "other thread"])
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("siblings", [False, True], ids=["alone", "another of its class"])
def test_uninstrument_in_mid_generate(telemetry: Telemetry, elsewhere: bool, at: int, siblings: bool) -> None:
    """Detaching from inside the model changes no token, leaves no hook, and the request still ends."""
    model, other = models.llama(), models.llama()
    if siblings:
        telemetry.instrument(other)
    want = _generate(model, models.prompt(1, 6), **_exactly(6))
    handle = telemetry.instrument(model)
    calls = 0

    def hook(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            if elsewhere:
                thread = threading.Thread(target=handle.uninstrument)
                thread.start()
                thread.join()
            else:
                handle.uninstrument()

    mine = model.model.layers[0].register_forward_hook(hook)
    got = _generate(model, models.prompt(1, 6), **_exactly(6))
    assert torch.equal(got, want)
    telemetry.check()
    mine.remove()
    assert sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()) == 0
    assert len(telemetry.requests()) == 1
    telemetry.instrument(model)
    _generate(model, models.prompt(1, 6), **_exactly(6))
    telemetry.check()
    assert telemetry.usage()[1:] == [(6, 6)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_in_generate(telemetry: Telemetry, error: type[BaseException]) -> None:
    """What is no Exception ends every open span as an error too, passes, and the next call is clean."""
    model = models.llama()
    telemetry.instrument(model)
    calls = 0

    def hook(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise error

    mine = model.model.layers[1].register_forward_hook(hook)
    with pytest.raises(error):
        _generate(model, models.prompt(1, 6), **_exactly(6))
    mine.remove()
    _generate(model, models.prompt(1, 6), **_exactly(6))
    telemetry.check()
    failed = [span.name for span in telemetry.spans() if (span.attributes or {}).get(semconv.ERROR_TYPE) == error.__name__]
    assert {"text_completion" in failed[0], *failed[1:]} == {True, "decode", "decode_step", "layer 1"}
    # The third pass failed, so two tokens had been produced.
    assert telemetry.usage() == [(6, 2), (6, 6)]


def test_instrumented_and_detached_while_threads_generate(telemetry: Telemetry) -> None:
    """Instrumenting and detaching again and again while three threads generate changes no token and leaves no span without a place."""
    model = models.llama()
    ids = models.prompt(1, 6)
    want = _generate(model, ids, **_exactly(5))
    wrong: list[object] = []
    done = threading.Event()

    def work() -> None:
        try:
            while not done.is_set():
                if not torch.equal(_generate(model, ids, **_exactly(5)), want):
                    wrong.append("tokens")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for turn in range(60):
            handle = telemetry.instrument(model, every_step=turn % 2 == 0)
            time.sleep(0.02)
            handle.uninstrument()
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert wrong == []
    telemetry.check()
    assert sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()) == 0
    assert telemetry.requests()


class _Called(nn.Module):
    """Has a ``__call__`` of its own, which leads to that of torch."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class _Hooked(nn.Module):
    """Has a ``__call__`` of its own that may not, so that it is observed by hooks, which can be taken off while it runs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return nn.Module.__call__(self, *args, **kwargs)


@pytest.mark.parametrize("base", [_Called, _Hooked])
@pytest.mark.parametrize("again", [False, True], ids=["for good", "and instrumented again"])
def test_hooks_taken_off_in_an_unseen_pass(telemetry: Telemetry, again: bool, base: type[nn.Module]) -> None:
    """A module whose end was not seen is no call of a later step, and makes no step of its own.

    A plain pass on another thread keeps the hooks on the modules after ``uninstrument()`` has taken the wrappers off, and goes during a
    pass of ``generate()``.
    """
    model = models.llama()
    first = model.model.layers[0]
    first.__class__ = type("LlamaDecoderLayer", (base, type(first)), {})
    handle = telemetry.instrument(model, every_step=True)
    held, release = threading.Event(), threading.Event()
    plain = threading.Thread(target=lambda: model(models.prompt(1, 3)))
    calls: list[str] = []

    def during(module: nn.Module, args: Any) -> None:
        if threading.current_thread() is plain:
            held.set()
            release.wait(30)
            return
        calls.append("layer")
        if len(calls) == 2:
            release.set()
            plain.join(30)

    def criterion(ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if len(calls) == 1:
            handle.uninstrument()
        elif len(calls) == 2 and again:
            telemetry.instrument(model, every_step=True)
        return torch.zeros(ids.shape[0], dtype=torch.bool)

    mine = first.self_attn.register_forward_pre_hook(during)
    plain.start()
    assert held.wait(30)
    got = _generate(model, models.prompt(1, 6), **_exactly(5), stopping_criteria=StoppingCriteriaList([criterion]))
    mine.remove()
    assert got.shape == (1, 11)
    telemetry.check()
    assert telemetry.usage()[0] == (6, 5)
    named = [span.name for span in telemetry.spans()]
    assert named.count("decode_step") == (3 if again else 0)
    assert [span.name for span in telemetry.spans() if semconv.ERROR_TYPE in (span.attributes or {})] == []
