"""Failures, interrupts, requests inside requests, threads, and models that are changed or deleted while they run."""

# ruff: noqa: D103 - the name of a scenario says what it is; a docstring is there where it does not
from __future__ import annotations

import asyncio
import copy
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import StoppingCriteria, StoppingCriteriaList

from benchmarks.scenarios import models
from benchmarks.scenarios.models import prompt
from benchmarks.scenarios.registry import Table
from benchmarks.scenarios.run import Run, exactly

scenario = Table("failures")


class Interrupted(BaseException):
    """An exception that is no ``Exception``."""


def _at(module: nn.Module, number: int, action: Callable[[], Any]) -> Any:
    """Do something in one of the calls of a module, the first being 1; returns the hook."""
    calls = 0

    def hook(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            action()

    return module.register_forward_hook(hook)


def _raise(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def _fails(run: Run, error: BaseException, at: int, **settings: Any) -> None:
    """A request that fails in one of its passes, and a whole one after it."""
    model = run.watch(models.llama(), **settings)
    hook = _at(model.model.layers[1], at, _raise(error))
    run.generate(model, prompt(), raises=type(error), **exactly(4))
    hook.remove()
    run.generate(model, prompt(), **exactly(2))


@scenario
def error_in_the_prefill(run: Run) -> None:
    _fails(run, ValueError("layer failed"), 1)


@scenario
def error_in_a_decode_step(run: Run) -> None:
    _fails(run, ValueError("layer failed"), 3)


@scenario
def error_with_every_module(run: Run) -> None:
    _fails(run, ValueError("layer failed"), 2, modules="all", every_step=True)


@scenario
def error_kept_by_the_flight_recorder(run: Run) -> None:
    _fails(run, ValueError("layer failed"), 3, keep="errors")


@scenario
def keyboard_interrupt(run: Run) -> None:
    _fails(run, KeyboardInterrupt("stop"), 3)


@scenario
def keyboard_interrupt_kept(run: Run) -> None:
    _fails(run, KeyboardInterrupt("stop"), 2, keep="errors")


@scenario
def system_exit(run: Run) -> None:
    _fails(run, SystemExit(3), 2)


@scenario
def base_exception(run: Run) -> None:
    _fails(run, Interrupted("now"), 1)


@scenario
def out_of_memory(run: Run) -> None:
    _fails(run, torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), 2)


@scenario
def misspelt_argument(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(), max_new_token=3, raises=ValueError)


@scenario
def token_out_of_range(run: Run) -> None:
    run.generate(run.watch(models.llama()), torch.tensor([[5, 6123, 7]]), raises=IndexError, **exactly(2))


@scenario
def nonfinite_logits(run: Run) -> None:
    model = models.llama()
    with torch.no_grad():
        model.lm_head.weight[0].fill_(float("nan"))
        model.lm_head.weight[5].fill_(float("inf"))
    run.generate(run.watch(model, keep="nonfinite"), prompt(2), **exactly(3))


@scenario
def nonfinite_layer(run: Run) -> None:
    model = models.llama()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("inf")
    run.generate(run.watch(model, output_stats=True), prompt(), **exactly(2))


# ------------------------------------------------------------------------------------------------------- requests in requests
class Retry(StoppingCriteria):
    """Generates with the same model at the first step."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action: Callable[[], Any] | None = action

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        action, self.action = self.action, None
        if action is not None:
            action()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@scenario
def nested_generate(run: Run) -> None:
    model = run.watch(models.llama())
    criteria = StoppingCriteriaList([Retry(lambda: run.generate(model, prompt(1, 3), **exactly(2)))])
    run.generate(model, prompt(), stopping_criteria=criteria, **exactly(3))


@scenario
def nested_generate_that_fails(run: Run) -> None:
    model = run.watch(models.llama())
    criteria = StoppingCriteriaList([Retry(lambda: run.generate(model, prompt(), nothing=1, raises=ValueError))])
    run.generate(model, prompt(), stopping_criteria=criteria, **exactly(3))


@scenario
def forward_inside_generate(run: Run) -> None:
    model, other = run.watch(models.llama()), run.watch(models.gpt2())
    criteria = StoppingCriteriaList([Retry(lambda: other(prompt(1, 3)))])
    run.generate(model, prompt(), stopping_criteria=criteria, **exactly(3))


class Wrapper(nn.Module):
    """Delegates as PEFT does."""

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


@scenario
def wrapper(run: Run) -> None:
    run.generate(run.watch(Wrapper(models.llama())), prompt(), **exactly(3))


@scenario
def wrapper_and_base(run: Run) -> None:
    base = models.llama()
    outer = run.watch(Wrapper(base))
    run.watch(base)
    run.generate(outer, prompt(), **exactly(3))


@scenario
def bare_wrapper(run: Run) -> None:
    run.generate(run.watch(Bare(models.llama())), prompt(), **exactly(3))


class Yielding(nn.Module):
    """A model whose generate() is a generator function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)

    def generate(self, hidden: Tensor, times: int = 3) -> Iterator[Tensor]:
        for _ in range(times):
            hidden = self(hidden)
            yield hidden


@scenario
def generator_as_result(run: Run) -> None:
    result = run.generate(run.watch(Yielding()), torch.ones(1, 4))
    run.outcomes.append(len(list(result)))


# --------------------------------------------------------------------------------------------------------- threads and changes
@scenario
def threads(run: Run) -> None:
    """Three requests side by side, after one that is the warm-up."""
    run.ordered = False
    model = run.watch(models.llama())
    run.generate(model, prompt(), **exactly(2))
    together = threading.Barrier(3)

    def work() -> None:
        together.wait(30)
        run.generate(model, prompt(), **exactly(3))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)


@scenario
def tasks(run: Run) -> None:
    """Tasks of one loop, each with a context of its own."""
    run.ordered = False
    model, tracer = run.watch(models.llama()), run.tracer_provider.get_tracer("program")
    run.generate(model, prompt(), **exactly(2))

    async def task(number: int) -> None:
        with tracer.start_as_current_span(f"task {number}"):
            await asyncio.sleep(0)
            run.generate(model, prompt(), **exactly(2))
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        await asyncio.gather(*(task(number) for number in range(2)))

    asyncio.run(all_of_them())


@scenario
def uninstrumented_on_the_way(run: Run) -> None:
    model = run.watch(models.llama())
    hook = _at(model.model.layers[0], 3, run.handles[-1].uninstrument)
    run.generate(model, prompt(), **exactly(5))
    hook.remove()
    run.generate(run.watch(model), prompt(), **exactly(2))


@scenario
def instrumented_on_the_way(run: Run) -> None:
    model = models.llama()
    hook = _at(model.model.layers[0], 3, lambda: run.watch(model))
    run.generate(model, prompt(), **exactly(5))
    hook.remove()
    run.generate(model, prompt(), **exactly(2))


@scenario
def layers_replaced(run: Run) -> None:
    model = run.watch(models.llama())
    run.generate(model, prompt(), **exactly(2))
    model.model.layers[1] = copy.deepcopy(model.model.layers[0])
    run.handles[-1].refresh()
    run.generate(model, prompt(), use_cache=False, **exactly(2))


@scenario
def copied_model(run: Run) -> None:
    """A copy is not instrumented."""
    model = run.watch(models.llama())
    run.generate(copy.deepcopy(model), prompt(), **exactly(2))
    run.generate(model, prompt(), **exactly(2))


@scenario
def collected_model(run: Run) -> None:
    model = run.watch(models.llama())
    run.generate(model, prompt(), **exactly(2))
    run.forget(model)
    del model
    gc.collect()
    run.generate(run.watch(models.llama()), prompt(), **exactly(2))
