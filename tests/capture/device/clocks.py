"""Clocks of requests, and the passes that tests run on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from inferspan.capture.device.clock import SHARE_NS, CallClock, DeviceClock
from inferspan.capture.target import Target
from inferspan.settings import Settings
from tests.capture.device.fake_cuda import FakeCuda
from tests.capture.test_target import Recorder
from tests.cases import models

__all__ = ["MODEL", "Host", "generate", "run_pass", "start", "target_of", "times_of"]

MODEL = nn.Linear(2, 2)


class Host:
    """The host's clock, set by hand."""

    now = 1_000_000

    def __call__(self) -> int:
        """Nanoseconds."""
        return self.now


def start(clock: DeviceClock | None = None) -> CallClock:
    """The clock of a request that begins."""
    call = (clock or DeviceClock()).start(MODEL)
    assert call is not None
    return call


def run_pass(call: CallClock, host: Host, events: str, cuda: FakeCuda, device: int = 0) -> Any:
    """One pass: ``<`` begins and ``>`` ends it, ``+n`` and ``-n`` are module calls, ``wX`` works X ms, ``.`` lets the host's time pass."""
    actions: dict[str, Callable[[str], None]] = {
        "<": lambda _: call.begin(),
        ">": lambda _: call.end(),
        "+": lambda word: call.enter(int(word)),
        "-": lambda word: call.leave(int(word)),
    }
    for word in events.split():
        if word == ".":
            host.now += SHARE_NS
        elif word[0] == "w":
            cuda.work[device] += float(word[1:])
            host.now += SHARE_NS
        else:
            actions[word[0]](word[1:])
    return call.end_pass()


def times_of(measured: Any) -> dict[int | None, float]:
    """Milliseconds of the pass, under ``None``, and of its module calls."""
    found = dict(measured.modules) | ({None: measured.seconds} if measured.seconds is not None else {})
    return {number: round(value * 1e3, 4) for number, value in found.items()}


def target_of(model: Any, **settings: Any) -> tuple[Target, Recorder]:
    """An instrumented model, and what is recorded of it."""
    recorder = Recorder()
    return Target(model, Settings(nvml=False, host=False, allocator=False, **settings), recorder), recorder


def generate(model: Any, tokens: int = 3) -> Any:
    """A generation of so many tokens."""
    with torch.no_grad():
        return model.generate(models.prompt(), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens)
