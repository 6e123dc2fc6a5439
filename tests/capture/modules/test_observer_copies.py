"""Copies of an observed module, or of its dictionary, run by themselves and keep nothing of ours."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo  # so that it can tell when something is compiled
from torch import Tensor, nn

from inferspan.capture.compile.state import SLOT
from inferspan.capture.modules.observer import ObservedCall
from inferspan.capture.modules.recorder import FRAMES, IN_C
from tests.capture.modules.observed import ONES, Holder, Scaled, run
from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("nothing_compiled")



@pytest.mark.parametrize("threads", [1, 3])
def test_an_ordinary_call_is_known_by_counting(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Frames are looked at only where the counts of references say that somebody has a copy; that would be half of the cost of a call."""
    looked: list[Any] = []
    original = ObservedCall._instead

    def look(self: Any, *frames: int) -> Any:
        looked.append(self)
        return original(self, *(one + 1 for one in frames or (FRAMES,)))

    monkeypatch.setattr(ObservedCall, "_instead", look)
    inner = Holder(Scaled(), nn.Linear(2, 2))
    model = Holder(inner, Scaled())
    inner.inside = lambda parts: parts[0](ONES, self_=1.0) + parts[1](input=ONES)
    barrier = threading.Barrier(threads)
    model.inside = lambda parts: barrier.wait(20)
    with telemetry.instrument(model, modules="all"):
        running = [threading.Thread(target=model, args=(ONES,)) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    assert len(telemetry.modules()) == 6 * threads
    # Python code cannot count who is inside of a call at the same time.
    assert not looked or (threads > 1 and not IN_C)


@pytest.mark.parametrize("how", ["copy", "dictionary", "same dictionary", "replica", "hooks of its own"])
def test_shallow_copies_run_by_themselves(telemetry: Telemetry, how: str) -> None:
    """A copy of the module's dictionary, as copy.copy() or DataParallel make it, runs as what it is, and keeps nothing of ours."""

    class Twin(Scaled):
        def forward(self, x: Tensor, *, self_: float = 0.0, **more: Any) -> Tensor:
            return x * 5

    def clone(parts: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
        part = parts[0]
        if how == "copy":
            twin = copy.copy(part)
        elif how == "replica":
            twin = part._replicate_for_data_parallel()
        elif how == "hooks of its own":
            twin = Scaled()
            twin.__dict__.update({key: value for key, value in vars(part).items() if not key.endswith("_hooks")})
        else:
            twin = Twin.__new__(Twin)
            twin.__dict__ = part.__dict__ if how == "same dictionary" else dict(part.__dict__)
        if how != "same dictionary":
            twin.by = 5.0
        first, own, second = twin(ONES), part(ONES), twin(ONES)
        return twin, first, own, second

    model = Holder(Scaled())
    twin, first, own, second = run(telemetry, model, clone)
    assert [torch.equal(one, ONES * by) for one, by in ((first, 5), (own, 2), (second, 5))] == [True] * 3
    assert set(vars(twin)) - {"_is_replica"} == set(vars(Scaled()))
    # Both calls of the module itself, and none of a copy, which is no part of the model.
    assert len(telemetry.modules()) == 2


def test_shallow_copy_with_hooks_of_its_own(telemetry: Telemetry) -> None:
    """A copy that has got a hook, so that torch takes its slow path, still runs by itself."""

    def clone(parts: Any) -> Tensor:
        twin = copy.copy(parts[0])
        twin._forward_hooks = twin._forward_hooks.copy()
        twin.register_forward_hook(lambda *_: None)
        twin.by = 5.0
        return twin(ONES)

    assert torch.equal(run(telemetry, Holder(Scaled()), clone), ONES * 5)


@pytest.mark.parametrize("named", [{}, {"self_": 1.0}])
def test_copies_cost_nothing_where_there_are_none(telemetry: Telemetry, named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary call, the first as the thousandth, looks for no module that has got a copy."""
    looked = []
    monkeypatch.setattr(ObservedCall, "_instead", lambda self: looked.append(self))

    def inside(parts: Any) -> None:
        for _ in range(1000):
            parts[0](ONES, **named)

    run(telemetry, Holder(Scaled()), inside)
    assert not looked


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_whole_copies(telemetry: Telemetry, how: str) -> None:
    """A copy that is made in the middle of a pass is a plain module."""

    def clone(parts: Any) -> Any:
        if how == "deepcopy":
            return copy.deepcopy(parts[0])
        if how == "pickle":
            return pickle.loads(pickle.dumps(parts[0]))
        file = io.BytesIO()
        torch.save(parts[0], file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    twin = run(telemetry, Holder(nn.Linear(2, 2)), clone)
    assert set(vars(twin)) == set(vars(nn.Linear(2, 2))) and twin(ONES).shape == (1, 2)


@pytest.mark.parametrize("then", ["call", "compile", "record"])
def test_put_back_after_the_pass(telemetry: Telemetry, then: str) -> None:
    """A patch of the slot that begins in a pass and ends after it puts ours back: it works as the module does, and goes when it is called."""
    part = Scaled()
    model = Holder(part)
    patch = mock.patch.object(part, SLOT, side_effect=lambda x: x * 5)
    run(telemetry, model, lambda parts: patch.start() and None)
    patch.stop()
    assert SLOT in vars(part)
    model.inside = lambda parts: None
    if then == "compile":
        assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(ONES), ONES * 2)
        model(ONES)
    if then == "record":
        before = len(telemetry.modules())
        run(telemetry, model, lambda parts: None)
        assert len(telemetry.modules()) == before + 1
    else:
        assert torch.equal(part(ONES), ONES * 2)
    assert SLOT not in vars(part)
