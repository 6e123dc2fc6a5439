"""Control flow that data decide: early exits, skipped layers, loops and branches of models whose paths are known."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import ReadableSpan
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from inferspan.settings import SettingsError
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

FLOW = (
    semconv.BRANCH_PATH, semconv.BRANCH_CALLED, semconv.BRANCH_NOT_CALLED, semconv.BRANCH_PASSES, semconv.EARLY_EXIT_LAYER,
    semconv.EARLY_EXIT_LAYERS, semconv.EARLY_EXIT_PASSES, semconv.LAYERS_SKIPPED, semconv.LOOP_MODULES, semconv.LOOP_ITERATIONS,
)  # fmt: skip


def flow(span: ReadableSpan) -> dict[str, Any]:
    """Attributes of control flow, without their prefix."""
    found = {key.removeprefix("inferspan."): value for key, value in (span.attributes or {}).items() if key in FLOW}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}


def events(span: ReadableSpan) -> list[tuple[str, dict[str, Any]]]:
    """Events of control flow."""
    names = (semconv.EARLY_EXIT_EVENT, semconv.BRANCH_EVENT)
    return [
        (event.name, {key: list(value) if isinstance(value, tuple) else value for key, value in (event.attributes or {}).items()})
        for event in span.events
        if event.name in names
    ]


class Decides(nn.Module):
    """Layers of which the input says which ones run; a branch; a loop.

    The first value of the input is a number: how many layers run. The second picks the branch, the third the iterations of the loop, the
    fourth a layer that is skipped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(5)])
        self.left = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.right = nn.Linear(4, 4)
        self.cell = nn.Linear(4, 4)

    def forward(self, given: Tensor) -> Tensor:
        run, branch, iterations, skipped = map(int, given[0].tolist())
        hidden = given
        for index, layer in enumerate(self.layers[:run]):
            if index != skipped:
                hidden = layer(hidden)
        hidden = self.left(hidden) if branch else self.right(hidden)
        for _ in range(iterations):
            hidden = self.cell(hidden)
        return hidden


def given(run: int = 5, branch: int = 0, iterations: int = 1, skipped: int = -1) -> Tensor:
    """An input for ``Decides``."""
    return torch.tensor([[run, branch, iterations, skipped]] * 2, dtype=torch.float32)


def test_a_pass_as_ever(telemetry: Telemetry) -> None:
    """All layers run once: the number of the path, and nothing else."""
    model = Decides()
    telemetry.instrument(model, control_flow="all")
    model(given())
    model(given())
    assert [flow(span) for span in telemetry.forwards()] == [{"branch.path": 0}] * 2
    assert events(telemetry.forwards()[0]) == []
    telemetry.check()


def test_an_early_exit(telemetry: Telemetry) -> None:
    """The layer after which no other ran."""
    model = Decides()
    telemetry.instrument(model, control_flow="all")
    model(given(run=3))
    (span,) = telemetry.forwards()
    expected = {"branch.path": 0, "early_exit.layer": 2, "early_exit.layers": [2], "early_exit.passes": 1}
    assert flow(span) == expected
    assert events(span) == [
        (semconv.EARLY_EXIT_EVENT, {semconv.MODULE_NAME: "layers", semconv.EARLY_EXIT_LAYER: 2, semconv.LAYERS_TOTAL: 5})
    ]
    telemetry.check()


class Leaves(nn.Module):
    """Layers that stop where the first value says, before the layer of that number; with a failure if it is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(5)])

    def forward(self, given: Tensor) -> Tensor:
        hidden, last = given, int(given[0, 0])
        for index, layer in enumerate(self.layers):
            if index == abs(last):
                if last < 0:
                    raise ValueError("no such input")
                break
            hidden = layer(hidden)
        return hidden


def test_a_pass_in_which_no_module_ran(telemetry: Telemetry) -> None:
    """All modules of the first pass are missing in it."""
    model = Leaves()
    telemetry.instrument(model, control_flow="all")
    model(torch.full((2, 4), 9.0))
    model(torch.zeros(2, 4))
    missing = [f"layers.{layer}" for layer in range(5)]
    assert flow(telemetry.forwards()[1]) == {"branch.path": 1, "branch.not_called": missing, "branch.passes": 1}
    telemetry.check()


def test_a_first_pass_in_which_no_module_ran(telemetry: Telemetry) -> None:
    """It has a path of its own, and is not compared with passes of another shape."""
    model = Leaves()
    telemetry.instrument(model, control_flow="all")
    model(torch.full((3, 4), 9.0))
    model(torch.zeros(2, 4))
    assert flow(telemetry.forwards()[1]) == {"branch.path": 0}
    telemetry.check()


@pytest.mark.parametrize("handling", [False, True])
def test_a_failure_is_no_early_exit(telemetry: Telemetry, handling: bool) -> None:
    """A pass that raises has no path, also where the program handles another exception; the next pass is compared as ever."""
    model = Leaves()
    telemetry.instrument(model, control_flow="all")
    model(torch.full((2, 4), 9.0))

    def fail() -> None:
        with pytest.raises(ValueError, match="no such input"):
            model(torch.full((2, 4), -2.0))

    if handling:
        try:
            raise KeyError("another")
        except KeyError:
            fail()
    else:
        fail()
    try:
        raise KeyError("another")
    except KeyError:
        model(torch.full((2, 4), 3.0))
    _, failed, left = telemetry.forwards()
    assert (flow(failed), events(failed)) == ({}, [])
    assert flow(left)["early_exit.layer"] == 2
    telemetry.check()


def test_an_interrupt_is_no_early_exit(telemetry: Telemetry) -> None:
    """Torch calls no hook after it."""
    model = Leaves()
    telemetry.instrument(model, control_flow="all")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = model.layers[2].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(torch.full((2, 4), 9.0))
    hook.remove()
    model(torch.full((2, 4), 9.0))
    assert [flow(span) for span in telemetry.forwards()] == [{}, {"branch.path": 0}]
    telemetry.check()


def test_passes_after_one_that_did_not_end(telemetry: Telemetry) -> None:
    """Of one step: after an interrupt, and before a call that a hook of the program's refuses."""
    model = Leaves()
    refuses: list[bool] = []

    def refuse(*_: Any) -> None:
        if refuses:
            raise ValueError("refused")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    model.register_forward_pre_hook(refuse)
    telemetry.instrument(model, control_flow="all")
    with inferspan.generation(model, input_tokens=3) as generation, generation.prefill():
        hook = model.layers[2].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(torch.full((2, 4), 9.0))
        hook.remove()
        model(torch.full((2, 4), 3.0))
        refuses.append(True)
        with pytest.raises(ValueError, match="refused"):
            model(torch.full((2, 4), 4.0))
    (span,) = telemetry.requests()
    assert flow(span) == {"early_exit.layers": [2], "early_exit.passes": 1}
    telemetry.check()


def test_a_step_that_fails(telemetry: Telemetry) -> None:
    """The request has no early exit by it."""
    model = models.llama()
    telemetry.instrument(model, control_flow="all")
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ValueError("third step")

    model.model.layers[0].register_forward_hook(fail)
    with torch.no_grad(), pytest.raises(ValueError, match="third step"):
        model.generate(models.prompt(), do_sample=False, max_new_tokens=5, min_new_tokens=5)
    (span,) = telemetry.requests()
    assert (flow(span), events(span)) == ({}, [])
    telemetry.check()


def test_a_skipped_layer(telemetry: Telemetry) -> None:
    """One that later ones followed."""
    model = Decides()
    telemetry.instrument(model, control_flow="all")
    model(given(skipped=1))
    assert flow(telemetry.forwards()[0]) == {"branch.path": 0, "layers.skipped": [1]}
    telemetry.check()


def test_iterations_of_a_loop(telemetry: Telemetry) -> None:
    """Modules that ran more than once."""
    model = Decides()
    telemetry.instrument(model, control_flow="all")
    model(given(iterations=7))
    assert flow(telemetry.forwards()[0]) == {"branch.path": 0, "loop.modules": ["cell"], "loop.iterations": [7]}
    telemetry.check()


def test_a_branch(telemetry: Telemetry) -> None:
    """What ran in a pass and not in the first of the same shape; a pass of another shape has its own first."""
    model = Decides()
    telemetry.instrument(model, control_flow="all")
    for rows in (given(), given(branch=1), given(), given(branch=1)[:1]):
        model(rows)
    usual, other, again, shape = telemetry.forwards()
    assert flow(usual) == {"branch.path": 0}
    assert flow(other) == {"branch.path": 1, "branch.called": ["left"], "branch.not_called": ["right"], "branch.passes": 1}
    assert events(other) == [(semconv.BRANCH_EVENT, {semconv.BRANCH_CALLED: ["left"], semconv.BRANCH_NOT_CALLED: ["right"]})]
    assert flow(again) == {"branch.path": 0}
    assert flow(shape) == {"branch.path": 0}
    telemetry.check()


@pytest.mark.parametrize("seed", range(20))
def test_random_decisions(telemetry: Telemetry, seed: int) -> None:
    """Exit, skipped layer, branch and iterations of each pass are those that its input has asked for."""
    chance = random.Random(seed)
    model = Decides()
    telemetry.instrument(model, control_flow="all", modules="none")
    asked = [(chance.randint(1, 5), chance.randint(0, 1), chance.randint(0, 4), chance.randint(-1, 4)) for _ in range(6)]
    for one in asked:
        model(given(*one))
    first = asked[0]
    for (run, branch, iterations, skipped), span in zip(asked, telemetry.forwards(), strict=True):
        found = flow(span)
        ran = [index for index in range(run) if index != skipped]
        assert found.get("early_exit.layer") == (ran[-1] if ran and ran[-1] < 4 else None)
        assert found.get("layers.skipped") == ([skipped] if ran and 0 <= skipped < ran[-1] else None)
        assert found.get("loop.iterations") == ([iterations] if iterations > 1 else None)
        decided = [name for name, here, before in (
            ("left", branch, first[1]), ("right", not branch, not first[1]), ("cell", iterations > 0, first[2] > 0)
        ) if here and not before]  # fmt: skip
        assert [name for name in found.get("branch.called", []) if not name.startswith("layers")] == decided
    telemetry.check()


def test_experts_are_no_layers(telemetry: Telemetry) -> None:
    """An expert that was not chosen is a branch, not an early exit."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, hidden: Tensor) -> Tensor:
            chosen: Tensor = self.experts[int(hidden[0, 0])](hidden)
            return chosen

    model = Mixture()
    telemetry.instrument(model, control_flow="all")
    model(torch.zeros(2, 4))
    model(torch.full((2, 4), 2.0))
    assert [flow(span) for span in telemetry.forwards()] == [
        {"branch.path": 0},
        {"branch.path": 1, "branch.called": ["experts.2"], "branch.not_called": ["experts.0"], "branch.passes": 1},
    ]
    telemetry.check()


def _exiting(model: Any, exits: dict[int, int]) -> None:
    """Let a decoder leave after so many layers in some of its passes."""
    whole, passes = model.model.layers, iter(range(100))
    forward = model.model.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        model.model.config.num_hidden_layers = exits.get(next(passes), len(whole))
        return forward(*args, **kwargs)

    model.model.forward = run


@pytest.mark.parametrize("steps", ["all", "sampled"])
def test_steps_that_end_early(telemetry: Telemetry, steps: str) -> None:
    """In every step, whether or not its modules have spans: the step has the layer, the request their number and an event for each."""
    model = models.llama()
    _exiting(model, {3: 1, 5: 1, 6: 1})
    telemetry.instrument(model, control_flow="layers", steps=steps)
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9, use_cache=False)
    (request,) = telemetry.requests()
    assert flow(request) == {"early_exit.layers": [0], "early_exit.passes": 3}
    assert [one[1][semconv.STEP_INDEX] for one in events(request)] == [3, 5, 6]
    assert {one[1][semconv.MODULE_NAME] for one in events(request)} == {"model.layers"}
    found = {(span.attributes or {})[semconv.STEP_INDEX]: flow(span).get("early_exit.layer") for span in telemetry.steps()}
    assert all(layer == (0 if step in (3, 5, 6) else None) for step, layer in found.items())
    assert len(found) == (9 if steps == "all" else 5)
    telemetry.check()


def test_early_exit_of_transformers(telemetry: Telemetry) -> None:
    """``assistant_early_exit``: the drafts come from the first layers of the model itself, in requests inside."""
    model = models.llama()
    plain = copy.deepcopy(model)
    telemetry.instrument(model, control_flow="layers")
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8, "min_new_tokens": 8, "assistant_early_exit": 1}
    with torch.no_grad():
        expected = plain.generate(models.prompt()[:1], **options)
        assert torch.equal(model.generate(models.prompt()[:1], **options), expected)
    drafts = [span for span in telemetry.requests(nested=None) if (span.attributes or {}).get(semconv.NESTED)]
    assert drafts
    for span in drafts:
        assert flow(span)["early_exit.layers"] == [0]
    (request,) = telemetry.requests()
    assert "early_exit.layers" not in flow(request)
    assert semconv.SPECULATIVE_DRAFTED in (request.attributes or {})
    steps = [span for span in telemetry.steps() if "branch.path" in flow(span)]
    assert {flow(span).get("early_exit.layer") for span in steps} == {None, 0}
    telemetry.check()


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_a_cache_that_is_passed_in(telemetry: Telemetry) -> None:
    """A hit where it holds positions, a miss where it is empty, nothing without one."""
    from transformers import DynamicCache

    model = models.llama()
    telemetry.instrument(model)
    cache, prompt = DynamicCache(), models.prompt()[:1]
    with torch.no_grad():
        model.generate(prompt, do_sample=False, max_new_tokens=2, min_new_tokens=2)
        first = model.generate(prompt, past_key_values=cache, do_sample=False, max_new_tokens=2, min_new_tokens=2)
        model.generate(first, past_key_values=cache, do_sample=False, max_new_tokens=2, min_new_tokens=2)
    found = [(span.attributes or {}).get(semconv.KV_CACHE_HIT) for span in telemetry.requests()]
    assert found == [None, False, True]
    telemetry.check()


def test_it_can_change_at_run_time(telemetry: Telemetry) -> None:
    """Hooks are on the model during requests only."""
    model = Decides()
    handle = telemetry.instrument(model)
    model(given(run=2))
    handle.set(control_flow=["layers.*"])
    model(given(run=2))
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}
    handle.set(control_flow="none")
    model(given(run=2))
    assert [flow(span).get("early_exit.layer") for span in telemetry.forwards()] == [None, 1, None]
    with pytest.raises(SettingsError, match=r"'control_flow'.*matches no module"):
        handle.set(control_flow=["nowhere"])
    telemetry.check()


def test_compiled_code_is_not_seen(telemetry: Telemetry) -> None:
    """The request says so."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    telemetry.instrument(model, control_flow="all")
    model.compile(backend="eager")
    with torch.no_grad():
        model(torch.ones(2, 4))
    (span,) = telemetry.forwards()
    assert flow(span) == {}
    assert "control flow: compiled" in str((span.attributes or {})[semconv.UNOBSERVED])
    torch._dynamo.reset()
