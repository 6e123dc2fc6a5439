"""Profiler windows on the CPU: what torch.profiler sees of a pass, under the right step and module, and nothing of the program changed."""

from __future__ import annotations

import functools
import random
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import inferspan
from inferspan import semconv
from inferspan.capture.profiler.events import MAX_NAME
from tests.capture.profiler.windows import PROMPT, Blocks, attributes_of, autograd, generate, profiled, steps_of
from tests.cases.models import llama
from tests.cases.telemetry import Telemetry


def test_operations_are_those_of_the_profiler(telemetry: Telemetry) -> None:
    """The operations of a pass are the ones that torch.profiler itself reports of the same pass, in their order."""
    model, x = Blocks(), torch.ones(2, 8)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as expected:
        model(x)
    handle = telemetry.instrument(model, modules="all")
    with torch.no_grad(), handle.profile(steps=1) as window:
        model(x)
    found = profiled(telemetry)
    top = [event.name for event in expected.events() if event.cpu_parent is None and event.name.startswith("aten::")]
    assert [span.name for span in found] == top == ["aten::linear", "aten::relu", "aten::linear"]
    parents = {span.context.span_id: span.name for span in telemetry.spans()}
    assert [parents[span.parent.span_id] for span in found] == ["first", "forward Blocks", "second"]
    assert (window.steps, window.ops, window.kernels, window.spans_dropped, window.note) == (1, 3, 0, 0, None)
    (forward,) = telemetry.forwards()
    assert (attributes_of(forward)[semconv.PROFILER_STEPS], attributes_of(forward)[semconv.PROFILER_OPS]) == (1, 3)
    telemetry.check()


def test_steps_of_a_generation(telemetry: Telemetry) -> None:
    """The first three passes are profiled and no other, every operation inside the module and the step that ran it."""
    model = llama()
    handle = telemetry.instrument(model, modules="all", max_spans_per_trace=5000)
    with handle.profile(steps=3) as window:
        generate(model)
    found = profiled(telemetry)
    assert sorted(steps_of(found)) == [0, 1, 2] and window.steps == 3 and window.ops == len(found)
    assert {attributes_of(span)[semconv.PHASE] for span in found if attributes_of(span)[semconv.STEP_INDEX] == 0} == {"prefill"}
    by_id = {span.context.span_id: span for span in telemetry.spans()}
    linears = [span for span in found if span.name == "aten::linear"]
    types = Counter(attributes_of(by_id[span.parent.span_id])[semconv.MODULE_TYPE] for span in linears)
    assert types == {"Linear": 3 * 15}, "each of the 15 linear layers runs one linear operation a step"
    steps = [attributes_of(span) for span in telemetry.steps()]
    assert [step.get(semconv.PROFILER_OPS) for step in steps] == [steps_of(found)[index] or None for index in range(6)]
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
    generate(model, 3)
    del model.forward
    handle = telemetry.instrument(model, max_spans_per_trace=5000)
    with handle.profile(steps=3):
        generate(model, 3)
    for index, expected in enumerate(seen):
        assert Counter(span.name for span in profiled(telemetry) if attributes_of(span)[semconv.STEP_INDEX] == index) == expected
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
    assert [attributes_of(span).get(semconv.PROFILER_STEPS) for span in telemetry.forwards()] == [None, 1, 1, None]
    assert (window.steps, window.wanted, repr(window)) == (2, 5, "<inferspan profile: 2 of 5 passes, 0 kernels, 6 operations>")
    telemetry.check()


def test_window_over_several_requests(telemetry: Telemetry) -> None:
    """A window that one request did not use up goes on with the next."""
    model = llama()
    handle = telemetry.instrument(model)
    with handle.profile(steps=3) as window:
        generate(model, 2)
        generate(model, 4)
    assert [attributes_of(span)[semconv.PROFILER_STEPS] for span in telemetry.requests()] == [2, 1] and window.steps == 3
    telemetry.check()


def test_budget(telemetry: Telemetry) -> None:
    """The passes of a window share the budget, the longest operations stay, and what was left out is counted."""
    model = llama()
    handle = telemetry.instrument(model, max_spans_per_trace=120)
    with handle.profile(steps=3) as window:
        generate(model, 4)
    found = profiled(telemetry)
    counts = steps_of(found)
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
    generate(model, 4)
    with handle.profile(steps=3):
        generate(model, 4)
    found = profiled(telemetry)
    assert sorted(steps_of(found)) == [0, 1, 2]
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
    assert not profiled(telemetry) and window.ops == 3 and window.spans_dropped == 0
    assert attributes_of(telemetry.forwards()[0])[semconv.PROFILER_OPS] == 3


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
    assert not autograd._profiler_enabled()
    names = [span.name for span in profiled(telemetry)]
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
        generate(model)
    hook.remove()
    assert window.steps == 2 and sorted(steps_of(profiled(telemetry))) == [0, 1]
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


def test_one_request_at_a_time(telemetry: Telemetry) -> None:
    """Of requests on several threads one has the window until it ends, on whatever thread it runs; no pass is counted twice."""
    model = llama()
    handle = telemetry.instrument(model)
    threads = [threading.Thread(target=generate, args=(model, 6)) for _ in range(4)]
    with handle.profile(steps=9) as window:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counts = [attributes_of(span).get(semconv.PROFILER_STEPS, 0) for span in telemetry.requests()]
    assert sum(counts) == window.steps <= 9 and 6 in counts
    for request in telemetry.requests():
        mine = [span for span in profiled(telemetry) if span.context.trace_id == request.context.trace_id]
        assert len(steps_of(mine)) == attributes_of(request).get(semconv.PROFILER_STEPS, 0)
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
        assert not autograd._profiler_enabled()
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
    expected = generate(model).tolist()

    def detach(*_: Any) -> None:
        hook.remove()
        thread = threading.Thread(target=handle.uninstrument)
        thread.start() if elsewhere else handle.uninstrument()
        if elsewhere:
            thread.join()

    hook = model.model.layers[1].register_forward_pre_hook(detach)
    with handle.profile(steps=3):
        assert generate(model).tolist() == expected
    assert not autograd._profiler_enabled() and not model._forward_hooks
    telemetry.check()


def test_detail_of_a_profiled_request_is_kept(telemetry: Telemetry) -> None:
    """A request that somebody wanted profiled is worth its detail, though it was neither slow nor failed."""
    model = Blocks()
    handle = telemetry.instrument(model, keep="errors")
    model(torch.ones(2, 8))
    with handle.profile(steps=1):
        model(torch.ones(2, 8))
    assert [span.name for span in profiled(telemetry)] == ["aten::linear", "aten::relu", "aten::linear"]
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
    names = Counter(event.name[:MAX_NAME] for event in expected.events() if event.device_type == autograd.DeviceType.CUDA)
    handle = telemetry.instrument(model, modules="all")
    with torch.no_grad(), handle.profile(steps=1) as window:
        model(x)
    found = profiled(telemetry)
    assert Counter(attributes_of(span)[semconv.KERNEL_NAME] for span in found) == names
    assert window.kernels == len(found) and window.kernel_seconds > 0
    parents = {span.context.span_id: span.name for span in telemetry.spans()}
    assert {parents[span.parent.span_id] for span in found} == {"first", "second", "forward Blocks"}
    (forward,) = [span for span in telemetry.forwards() if semconv.PROFILER_STEPS in attributes_of(span)]
    assert all(span.start_time >= forward.start_time for span in found)
    telemetry.check()
