"""Profiler windows on the CPU: what torch.profiler sees of a pass, under the right step and module, and nothing of the program changed."""

from __future__ import annotations

import functools
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, profile, schedule

import inferspan
from inferspan import semconv
from inferspan.capture.profiler.events import MAX_NAME
from tests.cases.models import llama
from tests.cases.telemetry import Telemetry

PROMPT = torch.tensor([[1, 5, 6, 7]])
# As Any, because torch does not declare the names that are needed here.
_profiler: Any = autograd_profiler
_autograd: Any = torch.autograd


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    listener = Telemetry()
    yield listener
    listener.close()
    torch.set_num_threads(threads)
    assert not _autograd._profiler_enabled(), "a profiler was left open"
    assert _profiler._prepare_profiler is _autograd._prepare_profiler, "a start of the profiler is still watched"


def _of(span: Any) -> dict[str, Any]:
    return dict(span.attributes or {})


def _generate(model: Any, tokens: int = 6) -> Any:
    return model.generate(PROMPT, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)


def _profiled(telemetry: Telemetry) -> list[Any]:
    return [span for span in telemetry.spans() if semconv.PROFILER_KIND in _of(span)]


def _steps_of(found: list[Any]) -> Counter[int]:
    return Counter(_of(span)[semconv.STEP_INDEX] for span in found)


class Blocks(nn.Module):
    """Two linear layers and an operation between them."""

    def __init__(self, action: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.action = [action]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        self.action[0]()
        return self.second(x)


# -------------------------------------------------------------------------------------------------------- what is seen
def test_operations_are_those_of_the_profiler(telemetry: Telemetry) -> None:
    """The operations of a pass are the ones that torch.profiler itself reports of the same pass, in their order."""
    model, x = Blocks(), torch.ones(2, 8)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as expected:
        model(x)
    handle = telemetry.instrument(model, modules="all")
    with torch.no_grad(), handle.profile(steps=1) as window:
        model(x)
    found = _profiled(telemetry)
    top = [event.name for event in expected.events() if event.cpu_parent is None and event.name.startswith("aten::")]
    assert [span.name for span in found] == top == ["aten::linear", "aten::relu", "aten::linear"]
    parents = {span.context.span_id: span.name for span in telemetry.spans()}
    assert [parents[span.parent.span_id] for span in found] == ["first", "forward Blocks", "second"]
    assert (window.steps, window.ops, window.kernels, window.spans_dropped, window.note) == (1, 3, 0, 0, None)
    (forward,) = telemetry.forwards()
    assert (_of(forward)[semconv.PROFILER_STEPS], _of(forward)[semconv.PROFILER_OPS]) == (1, 3)
    telemetry.check()


def test_steps_of_a_generation(telemetry: Telemetry) -> None:
    """The first three passes are profiled and no other, every operation inside the module and the step that ran it."""
    model = llama()
    handle = telemetry.instrument(model, modules="all", max_spans_per_trace=5000)
    with handle.profile(steps=3) as window:
        _generate(model)
    found = _profiled(telemetry)
    assert sorted(_steps_of(found)) == [0, 1, 2] and window.steps == 3 and window.ops == len(found)
    assert {_of(span)[semconv.PHASE] for span in found if _of(span)[semconv.STEP_INDEX] == 0} == {"prefill"}
    by_id = {span.context.span_id: span for span in telemetry.spans()}
    linears = [span for span in found if span.name == "aten::linear"]
    types = Counter(_of(by_id[span.parent.span_id])[semconv.MODULE_TYPE] for span in linears)
    assert types == {"Linear": 3 * 15}, "each of the 15 linear layers runs one linear operation a step"
    steps = [_of(span) for span in telemetry.steps()]
    assert [step.get(semconv.PROFILER_OPS) for step in steps] == [_steps_of(found)[index] or None for index in range(6)]
    assert telemetry.only()[semconv.PROFILER_STEPS] == 3
    telemetry.check()


def test_same_operations_as_the_profiler_sees_of_a_decode_step(telemetry: Telemetry) -> None:
    """Of a whole decode step the multiset of outermost operations is what torch.profiler sees of that forward pass."""
    model = llama()
    seen: list[Counter[str]] = []
    forward = model.forward

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with profile(activities=[ProfilerActivity.CPU]) as events:
            result = forward(*args, **kwargs)
        names = [event.name for event in events.events() if event.cpu_parent is None and event.name.startswith("aten::")]
        seen.append(Counter(names))
        return result

    model.forward = watched
    _generate(model, 3)
    del model.forward
    handle = telemetry.instrument(model, max_spans_per_trace=5000)
    with handle.profile(steps=3):
        _generate(model, 3)
    for index, expected in enumerate(seen):
        assert Counter(span.name for span in _profiled(telemetry) if _of(span)[semconv.STEP_INDEX] == index) == expected
    telemetry.check()


def test_window_ends_with_its_block(telemetry: Telemetry) -> None:
    """What runs after the block is not profiled, however many passes are left; what ran before it neither."""
    model, x = Blocks(), torch.ones(2, 8)
    handle = telemetry.instrument(model)
    model(x)
    with handle.profile(steps=5) as window:
        model(x)
        model(x)
    model(x)
    assert [_of(span).get(semconv.PROFILER_STEPS) for span in telemetry.forwards()] == [None, 1, 1, None]
    assert (window.steps, window.wanted, repr(window)) == (2, 5, "<inferspan profile: 2 of 5 passes, 0 kernels, 6 operations>")
    telemetry.check()


def test_window_over_several_requests(telemetry: Telemetry) -> None:
    """A window that one request did not use up goes on with the next."""
    model = llama()
    handle = telemetry.instrument(model)
    with handle.profile(steps=3) as window:
        _generate(model, 2)
        _generate(model, 4)
    assert [_of(span)[semconv.PROFILER_STEPS] for span in telemetry.requests()] == [2, 1] and window.steps == 3
    telemetry.check()


def test_budget(telemetry: Telemetry) -> None:
    """The passes of a window share the budget, the longest operations stay, and what was left out is counted."""
    model = llama()
    handle = telemetry.instrument(model, max_spans_per_trace=120)
    with handle.profile(steps=3) as window:
        _generate(model, 4)
    found = _profiled(telemetry)
    counts = _steps_of(found)
    assert len(telemetry.spans()) <= 120
    assert min(counts[index] for index in range(3)) >= 20 and max(counts.values()) - min(counts.values()) <= 6
    assert window.spans_dropped == window.ops - len(found) > 0
    assert telemetry.only()[semconv.SPANS_DROPPED] >= window.spans_dropped
    assert "aten::scaled_dot_product_attention" in {span.name for span in found}
    telemetry.check()


@pytest.mark.parametrize("settings", [{"steps": "none"}, {"modules": "none"}, {"steps": "sampled"}], ids=str)
def test_steps_are_shown_for_what_is_under_them(telemetry: Telemetry, settings: dict[str, Any]) -> None:
    """Profiled steps have spans whatever the settings say of other steps, and without modules operations hang under the step."""
    model = llama()
    handle = telemetry.instrument(model, **settings)
    _generate(model, 4)
    with handle.profile(steps=3):
        _generate(model, 4)
    found = _profiled(telemetry)
    assert sorted(_steps_of(found)) == [0, 1, 2]
    if settings.get("steps") != "sampled":
        names = {span.context.span_id: span.name for span in telemetry.spans()}
        assert {names[span.parent.span_id] for span in found} == {"prefill_step", "decode_step"}
    telemetry.check()


def test_without_operations(telemetry: Telemetry) -> None:
    """With ``cpu_ops=False`` a model without a CUDA device has totals and no spans below its modules."""
    model = Blocks()
    handle = telemetry.instrument(model)
    with handle.profile(steps=1, cpu_ops=False) as window:
        model(torch.ones(2, 8))
    assert not _profiled(telemetry) and window.ops == 3 and window.spans_dropped == 0
    assert _of(telemetry.forwards()[0])[semconv.PROFILER_OPS] == 3


def test_requests_that_are_not_sampled_are_passed_over() -> None:
    """A request that no span is made of takes nothing from the window."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    listener = Telemetry(ALWAYS_OFF)
    model = Blocks()
    handle = listener.instrument(model)
    with handle.profile(steps=1) as window:
        model(torch.ones(2, 8))
    listener.close()
    assert window.steps == 0 and window.note == "no recorded forward pass of the model ran in the window"


# ------------------------------------------------------------------------------------------ nothing of the program changes
def test_same_results(telemetry: Telemetry) -> None:
    """Sampled tokens and all random states are those of the run without us."""
    model = llama()

    def run() -> tuple[Any, Any, Any]:
        torch.manual_seed(3)
        random.seed(3)
        result = model.generate(PROMPT, max_new_tokens=8, do_sample=True, top_k=20)
        return result.tolist(), torch.get_rng_state().tolist(), random.getstate()

    expected = run()
    handle = telemetry.instrument(model)
    with handle.profile(steps=4, cpu_ops=True):
        assert run() == expected
    telemetry.check()


@pytest.mark.parametrize("acting", [RuntimeError, KeyboardInterrupt])
def test_exceptions(telemetry: Telemetry, acting: type[BaseException]) -> None:
    """An exception out of a profiled pass reaches the program, and the profiler is closed by the end of the block at the latest."""

    def fail() -> None:
        raise acting("stop")

    model = Blocks(fail)
    handle = telemetry.instrument(model, modules="all")
    with pytest.raises(acting, match="stop"), handle.profile(steps=3):
        model(torch.ones(2, 8))
    assert not _autograd._profiler_enabled()
    names = [span.name for span in _profiled(telemetry)]
    assert names == ["aten::linear", "aten::relu"]
    with profile(activities=[ProfilerActivity.CPU]) as own:
        torch.ones(2)
    assert own.events()
    telemetry.check()


@pytest.mark.parametrize("acting", [RuntimeError, KeyboardInterrupt])
def test_exceptions_in_a_generation(telemetry: Telemetry, acting: type[BaseException]) -> None:
    """A generation that fails in a profiled step ends with that step's operations, and with its own exception."""
    model = llama()
    passes: list[int] = []

    def fail(*_: Any) -> None:
        passes.append(1)
        if len(passes) == 2:
            raise acting("stop")

    handle = telemetry.instrument(model)
    hook = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(acting, match="stop"), handle.profile(steps=3) as window:
        _generate(model)
    hook.remove()
    assert window.steps == 2 and sorted(_steps_of(_profiled(telemetry))) == [0, 1]
    telemetry.check()


# --------------------------------------------------------------------------------------------------------- other profilers
def test_profiler_of_the_program_around_the_window(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """While the program profiles, nothing is profiled by us, one line says so, and the program's profile is whole."""
    model, x = Blocks(), torch.ones(2, 8)
    handle = telemetry.instrument(model)
    with profile(activities=[ProfilerActivity.CPU]) as own, handle.profile(steps=2) as window:
        model(x)
        model(x)
    assert [event.name for event in own.events()].count("aten::relu") == 2
    assert window.steps == 0 and window.note == "another torch profiler is running or warming up in this process"
    assert len(caplog.records) == 1 and window.note in caplog.text
    assert not _profiled(telemetry)
    telemetry.check(complaints=True)


def test_profiler_of_the_program_with_a_schedule(telemetry: Telemetry) -> None:
    """A profiler that is warming up counts as one that is running; before and after, passes are profiled by us."""
    model, x = Blocks(), torch.ones(2, 8)
    handle = telemetry.instrument(model)
    passes = []
    with (
        handle.profile(steps=10) as window,
        profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=1, repeat=1)) as own,
    ):
        for _ in range(4):
            model(x)
            passes.append(window.steps)
            own.step()
    assert passes == [1, 1, 1, 2]
    assert [event.name for event in own.events()].count("aten::relu") == 1
    telemetry.check(complaints=True)


def test_profiler_of_the_program_inside_a_pass(telemetry: Telemetry) -> None:
    """A profiler that the model itself starts works as without us; what we saw until then is kept."""
    own: list[Any] = []

    def nested() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as inner:
            torch.ones(3).cos()
        own.append(inner)

    model = Blocks(nested)
    handle = telemetry.instrument(model, modules="all")
    with handle.profile(steps=1) as window:
        model(torch.ones(2, 8))
    assert "aten::cos" in {event.name for event in own[0].events()}
    assert [span.name for span in _profiled(telemetry)] == ["aten::linear", "aten::relu"] and window.steps == 1
    telemetry.check()


def test_profiler_of_another_thread_waits(telemetry: Telemetry) -> None:
    """A profiler that another thread starts during a profiled pass begins when the pass is over, and sees all of its own."""
    own: list[Any] = []

    def other() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as mine:
            torch.ones(3).cos()
        own.append(mine)

    thread = threading.Thread(target=other)

    def start() -> None:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive(), "two profilers at once end the process"

    model = Blocks(start)
    handle = telemetry.instrument(model, modules="all")
    with handle.profile(steps=1):
        model(torch.ones(2, 8))
    thread.join()
    assert "aten::cos" in {event.name for event in own[0].events()}
    assert [span.name for span in _profiled(telemetry)] == ["aten::linear", "aten::relu", "aten::linear"]
    telemetry.check()


def test_second_window(telemetry: Telemetry) -> None:
    """A window inside a window profiles nothing and says why; the outer one is not disturbed."""
    model = Blocks()
    handle = telemetry.instrument(model)
    with handle.profile(steps=2) as outer:
        with handle.profile(steps=2) as inner:
            model(torch.ones(2, 8))
        model(torch.ones(2, 8))
    assert (outer.steps, inner.steps, inner.note) == (2, 0, "the model has a profiler window already")
    telemetry.check(complaints=True)


# ----------------------------------------------------------------------------------------------------- threads, detaching
def test_one_request_at_a_time(telemetry: Telemetry) -> None:
    """Of requests on several threads one has the window until it ends, on whatever thread it runs; no pass is counted twice."""
    model = llama()
    handle = telemetry.instrument(model)
    threads = [threading.Thread(target=_generate, args=(model, 6)) for _ in range(4)]
    with handle.profile(steps=9) as window:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counts = [_of(span).get(semconv.PROFILER_STEPS, 0) for span in telemetry.requests()]
    assert sum(counts) == window.steps <= 9 and 6 in counts
    for request in telemetry.requests():
        mine = [span for span in _profiled(telemetry) if span.context.trace_id == request.context.trace_id]
        assert len(_steps_of(mine)) == _of(request).get(semconv.PROFILER_STEPS, 0)
    telemetry.check(complaints=True)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_uninstrument_inside(telemetry: Telemetry, elsewhere: bool) -> None:
    """Taking everything off during a profiled pass leaves no profiler open and no hook on the model, whichever thread does it."""
    handles: list[inferspan.Handle] = []

    def detach() -> None:
        if elsewhere:
            thread = threading.Thread(target=handles[0].uninstrument)
            thread.start()
            thread.join()
        else:
            handles[0].uninstrument()

    model = Blocks(detach)
    handles.append(telemetry.instrument(model))
    with handles[0].profile(steps=3) as window:
        model(torch.ones(2, 8))
        assert not _autograd._profiler_enabled()
        assert not model._forward_hooks and not model._forward_pre_hooks
        model(torch.ones(2, 8))
    assert len(telemetry.forwards()) == 1
    assert (window.steps, window.note) == (1, None)
    telemetry.check()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_uninstrument_inside_a_generation(telemetry: Telemetry, elsewhere: bool) -> None:
    """The step that is being profiled ends in its profile, the generation goes on without."""
    model = llama()
    handle = telemetry.instrument(model)
    expected = _generate(model).tolist()

    def detach(*_: Any) -> None:
        hook.remove()
        thread = threading.Thread(target=handle.uninstrument)
        thread.start() if elsewhere else handle.uninstrument()
        if elsewhere:
            thread.join()

    hook = model.model.layers[1].register_forward_pre_hook(detach)
    with handle.profile(steps=3):
        assert _generate(model).tolist() == expected
    assert not _autograd._profiler_enabled() and not model._forward_hooks
    telemetry.check()


def test_detached_handle(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """A window of a handle that is detached does nothing but say so."""
    model = Blocks()
    handle = telemetry.instrument(model)
    handle.uninstrument()
    with handle.profile() as window:
        model(torch.ones(2, 8))
    assert window.steps == 0 and window.note == "the model is not instrumented any more" and window.note in caplog.text


@pytest.mark.parametrize(
    ("options", "told"), [({"steps": 0}, "1 to 1000"), ({"steps": True}, "1 to 1000"), ({"cpu_ops": "yes"}, "cpu_ops")]
)
def test_wrong_arguments(telemetry: Telemetry, options: dict[str, Any], told: str) -> None:
    """What cannot be meant is said at once."""
    handle = telemetry.instrument(Blocks())
    with pytest.raises(inferspan.SettingsError, match=told):
        handle.profile(**options)


# ---------------------------------------------------------------------------------------------------------------- switches
def test_setting(telemetry: Telemetry) -> None:
    """``profile_steps`` profiles as many passes, beginning with the second call: the first warms up."""
    model = Blocks()
    telemetry.instrument(model, profile_steps=2)
    for _ in range(4):
        model(torch.ones(2, 8))
    assert [_of(span).get(semconv.PROFILER_STEPS) for span in telemetry.forwards()] == [None, 1, 1, None]
    telemetry.check()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this platform has no SIGUSR2")
def test_signal(telemetry: Telemetry) -> None:
    """At each signal the next passes are profiled, the program's own handler is called too, and it is back after uninstrument()."""
    heard: list[int] = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGUSR2, own)
    try:
        model = Blocks()
        handle = telemetry.instrument(model, profile_signal="sigusr2", profile_steps=1)
        model(torch.ones(2, 8))
        for _ in range(2):
            signal.raise_signal(signal.SIGUSR2)
            model(torch.ones(2, 8))
            model(torch.ones(2, 8))
        assert [_of(span).get(semconv.PROFILER_STEPS) for span in telemetry.forwards()] == [None, 1, None, 1, None]
        assert heard == [signal.SIGUSR2] * 2
        handle.uninstrument()
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)
    telemetry.check()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this platform has no SIGUSR2")
def test_signal_after_another_thread_has_detached(telemetry: Telemetry) -> None:
    """A handler that could not be taken off at once opens no window any more, and goes at the next signal."""
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        model = Blocks()
        handle = telemetry.instrument(model, profile_signal="SIGUSR2")
        thread = threading.Thread(target=handle.uninstrument)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_IGN
        signal.raise_signal(signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_signal_from_another_thread(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Instrumented on another thread, the model works, no handler is put in place, and one line says so."""
    thread = threading.Thread(target=telemetry.instrument, args=(Blocks(),), kwargs={"profile_signal": "SIGHUP"})
    before = signal.getsignal(signal.SIGHUP)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGHUP) is before
    assert "only the main thread" in caplog.text


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT", "USR1", 10])
def test_signals_that_cannot_be_used(telemetry: Telemetry, name: Any) -> None:
    """A signal that is unknown or means something else is refused, and the message names those that can be used."""
    with pytest.raises(inferspan.SettingsError, match=r"profile_signal.*SIGHUP"):
        telemetry.instrument(Blocks(), profile_signal=name)


def test_detail_of_a_profiled_request_is_kept(telemetry: Telemetry) -> None:
    """A request that somebody wanted profiled is worth its detail, though it was neither slow nor failed."""
    model = Blocks()
    handle = telemetry.instrument(model, keep="errors")
    model(torch.ones(2, 8))
    with handle.profile(steps=1):
        model(torch.ones(2, 8))
    assert [span.name for span in _profiled(telemetry)] == ["aten::linear", "aten::relu", "aten::linear"]
    assert len([span for span in telemetry.modules() if span.name == "first"]) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_kernels(telemetry: Telemetry) -> None:
    """On a GPU every linear layer has its kernels under it, as many as torch.profiler sees, begun after the pass did."""
    model, x = Blocks().cuda(), torch.ones(2, 8, device="cuda")
    with torch.no_grad():
        model(x)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as expected:
            model(x)
            torch.cuda.synchronize()
    names = Counter(event.name[:MAX_NAME] for event in expected.events() if event.device_type == _autograd.DeviceType.CUDA)
    handle = telemetry.instrument(model, modules="all")
    with torch.no_grad(), handle.profile(steps=1) as window:
        model(x)
    found = _profiled(telemetry)
    assert Counter(_of(span)[semconv.KERNEL_NAME] for span in found) == names
    assert window.kernels == len(found) and window.kernel_seconds > 0
    parents = {span.context.span_id: span.name for span in telemetry.spans()}
    assert {parents[span.parent.span_id] for span in found} == {"first", "second", "forward Blocks"}
    (forward,) = [span for span in telemetry.forwards() if semconv.PROFILER_STEPS in _of(span)]
    assert all(span.start_time >= forward.start_time for span in found)
    telemetry.check()
