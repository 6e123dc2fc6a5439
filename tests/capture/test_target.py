"""One instrumented model: found from calls, held weakly, and left as it was."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from inferspan.capture.target import Target, target_of
from inferspan.records import ModuleBatch, Phase, RequestEnd, RequestScope, RequestStart, Step
from inferspan.settings import Settings, SettingsError
from tests.cases import models


class Scope:
    """Keeps what it is handed."""

    recording = True

    def __init__(self, recorder: Recorder, start: RequestStart, parent: RequestScope | None) -> None:
        self.recorder, self.request, self.parent = recorder, start, parent
        self.records: list[Phase | Step | ModuleBatch] = []
        self.ended: list[RequestEnd] = []

    def detail(self, records: Any) -> None:
        """Keep them."""
        self.records.extend(records)

    def attach(self) -> None:
        """It is the current one now."""

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    def detach(self) -> None:
        """It is so no more."""

    def end(self, end: RequestEnd) -> None:
        """Keep it."""
        self.ended.append(end)


class Recorder:
    """Keeps requests, or refuses them."""

    def __init__(self, refuse: bool = False) -> None:
        self.scopes: list[Scope] = []
        self.refuse = refuse

    def start(self, start: RequestStart, parent: RequestScope | None) -> Scope | None:
        """Begin one."""
        if self.refuse:
            return None
        self.scopes.append(Scope(self, start, parent))
        return self.scopes[-1]

    def add_source(self, collect: Callable[[], None]) -> Callable[[], None]:
        """Never ask it."""
        return lambda: None

    def soon(self, collect: Callable[[], None]) -> bool:
        """Ask it at once."""
        collect()
        return True


def _target(model: nn.Module, recorder: Recorder | None = None, **settings: Any) -> Target:
    return Target(model, Settings(nvml=False, host=False, allocator=False, **settings), recorder or Recorder())


def _state(model: nn.Module) -> list[Any]:
    return [
        (name, sorted(vars(one)), len(one._forward_hooks), len(one._forward_pre_hooks), sorted(vars(type(one))))
        for name, one in model.named_modules()
    ]


def _generate(model: Any) -> Any:
    with torch.no_grad():
        return model.generate(models.prompt(), do_sample=False, max_new_tokens=3, min_new_tokens=3)


def test_records_of_a_request() -> None:
    """One request, ended once; its phases, its steps in order, and its modules under steps."""
    model, recorder = models.llama(), Recorder()
    target = _target(model, recorder)
    _generate(model)
    target.close()
    (scope,) = recorder.scopes
    (end,) = scope.ended
    assert (scope.request.kind, scope.request.nested, scope.parent) == ("generate", False, None)
    assert (end.input_tokens, end.output_tokens, end.batch_size, end.failure) == (6, 3, 1, None)
    steps = [record for record in scope.records if isinstance(record, Step)]
    assert [(step.number, step.phase.name) for step in steps] == [(0, "prefill"), (1, "decode"), (2, "decode")]
    assert [phase.key.name for phase in scope.records if isinstance(phase, Phase)] == ["prefill", "decode"]
    assert [batch.step for batch in scope.records if isinstance(batch, ModuleBatch)] == [0, 1, 2]


def test_model_is_left_as_it_was() -> None:
    """After ``close`` neither the model nor its classes hold anything of ours, and closing again does nothing."""
    model = models.llama()
    before, signatures = _state(model), [inspect.signature(model.forward), inspect.signature(model.generate)]
    target = _target(model)
    assert [inspect.signature(model.forward), inspect.signature(model.generate)] == signatures
    _generate(model)
    target.close()
    target.close()
    assert _state(model) == before and target_of(model) is None


def test_wrong_pattern_attaches_nothing() -> None:
    """A pattern without a match is refused before anything is attached."""
    model = models.llama()
    before = _state(model)
    with pytest.raises(SettingsError):
        _target(model, modules=("nothing",))
    assert _state(model) == before and target_of(model) is None


def test_found_for_its_model_only() -> None:
    """A call finds the instrumentation of its own model, not that of another of the class."""
    model, other = models.llama(), models.llama()
    target = _target(model)
    assert target_of(model) is target and target_of(other) is None
    target.close()
    assert target_of(model) is None


def test_dies_with_its_model() -> None:
    """The model is held weakly; when it goes, the wrappers on its class go too."""
    model = models.llama()
    # A class of this test alone: models of others may wait for the collector.
    model.__class__ = kind = type("OwnLlama", (type(model),), {})
    target = _target(model)
    assert "generate" in vars(kind)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None and not target.is_open and "generate" not in vars(kind)


def test_where_telemetry_stays_out() -> None:
    """A recorder that refuses costs nothing but the question, for both kinds of request."""
    model, recorder = models.llama(), Recorder(refuse=True)
    want = _generate(model)
    target = _target(model, recorder)
    assert torch.equal(_generate(model), want)
    with torch.no_grad():
        model(models.prompt())
    assert recorder.scopes == []
    target.close()


def test_requests_inside_others_know_their_parent() -> None:
    """A generate() inside the forward pass of an instrumented model is its child, and counts for itself."""
    inner = models.llama()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = inner

        def forward(self) -> Any:
            return _generate(self.part)

    outer, recorder = Outer(), Recorder()
    targets = [_target(outer, recorder), _target(inner, recorder)]
    outer()
    for target in targets:
        target.close()
    first, second = recorder.scopes
    assert (first.request.kind, first.parent) == ("forward", None)
    assert (second.request.kind, second.request.nested) == ("generate", False)
    assert second.parent is first
    assert len(first.ended) == len(second.ended) == 1
