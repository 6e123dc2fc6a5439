"""Compiled models: in a process of their own, as the first compilation of a process changes how modules are observed."""

# ruff: noqa: D103 - the name of a scenario says what it is; a docstring is there where it does not
from __future__ import annotations

from typing import Any

import torch

from benchmarks.scenarios import models
from benchmarks.scenarios.models import prompt
from benchmarks.scenarios.registry import Table
from benchmarks.scenarios.run import Run, exactly

scenario = Table("compiled")


def _fresh(**changes: Any) -> Any:
    torch._dynamo.reset()
    return models.llama(num_hidden_layers=1, **changes)


@scenario
def compiled_forward(run: Run) -> None:
    model = run.watch(_fresh())
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        run.forward(compiled, prompt())


@scenario
def compiled_in_place(run: Run) -> None:
    model = run.watch(_fresh())
    model.compile(backend="eager")
    run.generate(model, prompt(), **exactly(3))
    run.generate(model, prompt(), **exactly(3))


@scenario
def compiled_wrapper_instrumented(run: Run) -> None:
    compiled: Any = run.watch(torch.compile(_fresh(), backend="eager"))
    run.generate(compiled, prompt(), **exactly(3))
    run.forward(compiled, prompt())


@scenario
def compiled_layers(run: Run) -> None:
    model = _fresh()
    for layer in model.model.layers:
        layer.compile(backend="eager")
    run.generate(run.watch(model, modules="all"), prompt(), **exactly(3))


@scenario
def eager_after_a_compilation(run: Run) -> None:
    """Nothing is compiled here, but something was in this process."""
    run.generate(run.watch(models.llama(), modules="all"), prompt(), **exactly(3))
