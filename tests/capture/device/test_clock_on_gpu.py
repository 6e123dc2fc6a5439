"""Device times on a GPU: they agree with the profiler's, and the host waits no more often."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from inferspan.capture.device.clock import CallClock, DeviceClock
from tests.capture.device.clocks import target_of
from tests.cases import models

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")


def _on_device(model: Any, tokens: int) -> None:
    with torch.no_grad():
        model.generate(models.prompt().cuda(), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens)


def _profiled(run: Callable[[], object]) -> tuple[float, Counter[str]]:
    """Seconds of kernels, and how often the host has waited by which call."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        run()
        torch.cuda.synchronize()
    events: list[Any] = list(profile.events() or ())
    kernels = sum(event.time_range.elapsed_us() for event in events if str(event.device_type).endswith("CUDA"))
    return kernels * 1e-6, Counter(event.name for event in events if event.name in WAITS)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_agrees_with_the_profiler() -> None:
    """On device-bound work the times of a pass and of its modules are the kernels', within 2 %."""
    layers = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
    x = torch.randn(8192, 4096, device="cuda")

    def run(call: CallClock | None) -> Any:
        y = x
        if call is not None:
            call.begin()
        for number, layer in enumerate(layers):
            if call is not None:
                call.enter(number)
            y = layer(y)
            if call is not None:
                call.leave(number)
        return call.end_pass() if call is not None else None

    with torch.no_grad():
        run(None)
        kernels = min(_profiled(lambda: run(None))[0] for _ in range(3))
        call = DeviceClock().start(layers)
        assert call is not None
        measured = [run(call) for _ in range(5)]
        torch.cuda.synchronize()
        call.read(leave=0)
    assert min(one.seconds for one in measured) == pytest.approx(kernels, rel=0.02)
    assert min(sum(one.modules.values()) for one in measured) == pytest.approx(kernels, rel=0.02)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature", "ignore:Warning. Profiler clears events")
def test_nothing_waits_for_the_device() -> None:
    """The host waits for the device as often with device times as without: by torch's own account, and by the calls in a profile."""
    model = models.llama().cuda()
    counts = []
    for device_time in (False, True):
        target, _ = target_of(model, device_time=device_time, logits=False, modules="all", every_step=True)
        _on_device(model, 8)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                _on_device(model, 8)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits = _profiled(lambda: _on_device(model, 8))[1]
        counts.append((len([warning for warning in seen if "synchronizing" in str(warning.message)]), waits))
        target.close()
    assert counts[0] == counts[1] and counts[0][0] > 0
