"""Libraries around models, whose methods are wrapped at the first request after they were loaded."""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from inferspan.capture.passes.watch import LibraryWatch
from inferspan.capture.patching import ClassMethods, Undo


class Slow(ModuleType):
    """Stands for accelerate's hooks; whoever looks for its class waits a while for a second thread to do the same."""

    meeting = threading.Barrier(2)

    class Hook:
        """Stands for the hook that moves weights."""

        def pre_forward(self) -> None:
            """Would move the weights in."""

        def post_forward(self) -> None:
            """Would move them away."""

    @property
    def AlignDevicesHook(self) -> Any:
        """The class, late."""
        with contextlib.suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.3)
        return self.Hook


def test_first_requests_of_two_threads_wrap_a_method_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of them fails, and the method comes back when everything is taken off."""
    monkeypatch.setitem(sys.modules, "accelerate.hooks", Slow("accelerate.hooks"))
    before = Slow.Hook.__dict__["pre_forward"]
    undo = Undo()
    watch = LibraryWatch(lambda _: None, ClassMethods(), undo)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(watch.look) for _ in range(2)]:
            done.result()
    assert Slow.Hook.__dict__["pre_forward"] is not before
    undo.close()
    assert Slow.Hook.__dict__["pre_forward"] is before
