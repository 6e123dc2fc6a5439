"""What ``torch.compile(model)`` returns: each call is one request, also of classes whose call Dynamo inlines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from opentelemetry import trace
from torch import Tensor, nn

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """In memory; each test compiles from nothing."""
    dynamo.reset()
    made = Telemetry()
    yield made
    made.close()
    dynamo.reset()


class Stack(nn.Sequential):
    """A subclass without a forward of its own."""


class Scaled(nn.Linear):
    """A subclass with one."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


KINDS: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU()),
    lambda: nn.Linear(4, 4),
    lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    lambda: Stack(nn.Linear(4, 4)),
    lambda: Scaled(4, 4),
]


@pytest.mark.parametrize("make", KINDS, ids=["sequential", "linear", "encoder", "subclass", "own forward"])
@pytest.mark.parametrize("first", ["instrument", "compile", "compiled"])
def test_one_request_a_call(telemetry: Telemetry, make: Callable[[], nn.Module], first: str) -> None:
    """Whichever comes first, and whichever of the two modules is instrumented."""
    model, value = make().eval(), torch.ones(2, 3, 4)
    seen = []
    with torch.no_grad():
        if first == "instrument":
            handle = telemetry.instrument(model)
            compiled = torch.compile(model, backend="eager")
        else:
            compiled = torch.compile(model, backend="eager")
            handle = telemetry.instrument(model if first == "compile" else compiled)
        for _ in range(3):
            compiled(value)
            seen.append(len(telemetry.forwards()))
        handle.uninstrument()
        compiled(value)
    assert seen == [1, 2, 3]
    assert len(telemetry.forwards()) == 3
    assert {(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.forwards()} <= {None, "modules: compiled"}
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_generate_of_a_compiled_model_is_not_compiled(telemetry: Telemetry) -> None:
    """``generate()`` runs the model inside as it is, so its modules are observed and nothing is said of compiling."""
    compiled: Any = torch.compile(models.llama(), backend="eager")
    telemetry.instrument(compiled)
    with torch.no_grad():
        compiled.generate(models.prompt(), max_new_tokens=2)
    (request,) = telemetry.requests()
    assert (request.attributes or {}).get(semconv.UNOBSERVED) is None
    assert telemetry.modules()


ALONE = """
import gc
import inferspan, torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule

before = OptimizedModule.__call__
model = nn.Sequential(nn.Linear(4, 4))
handle = inferspan.instrument(model, modules="all")
model(torch.ones(1, 4))
assert OptimizedModule.__call__ is not before
{end}
assert OptimizedModule.__call__ is before
print("restored")
"""
"""In a process of its own: a model that another test keeps alive, in a cache or a cycle, keeps the wrapper too."""


@pytest.mark.parametrize("end", ["handle.uninstrument()", "del model; gc.collect()"], ids=["uninstrumented", "collected"])
def test_the_class_of_torch_is_restored(end: str) -> None:
    """With the last instrumented model the wrapper goes, also where the program has only dropped it and its modules were observed."""
    done = subprocess.run([sys.executable, "-c", ALONE.format(end=end)], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "restored\n"), done.stderr
