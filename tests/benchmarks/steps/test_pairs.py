"""Settings compared step by step: what runs in a step of which kind, what is counted, what is left behind, and the statistic."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import inferspan
from benchmarks import machine
from benchmarks.models import LLAMA, Workload, llama, prepare
from benchmarks.steps import pairs as step_pairs
from benchmarks.steps.pairs import AGAIN, PLAIN, RECORDED, SETTINGS, Compared, Timed, compare, measure, neighbours
from benchmarks.steps.switch import HOOKS, Switch
from inferspan.capture.compile.state import SLOT, compiled_graphs

MODULES, LAYERS = 57, 12
OURS = os.path.dirname(inferspan.__file__)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A model as small as this one loses by more threads, and nothing has been compiled."""
    # Other tests may have compiled something in this process, after which hooks do the work of what stands in the slots.
    torch._dynamo.reset()
    with machine.one_thread():
        yield


def _work(tokens: int = 40) -> Workload:
    return prepare("tiny", llama(**LLAMA["tiny"]).cpu().float(), tokens=tokens)


def _state(model: nn.Module) -> tuple[Any, ...]:
    """All places of a model and its class where something of ours may be."""
    modules = [(set(vars(one)), [dict(getattr(one, name)) for name in HOOKS]) for one in model.modules()]
    return modules, dict(vars(type(model)))


class _Witness:
    """Sees as the thread's profiler what of ours is called between two calls of the criterion, and what is attached then."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.requests: list[Any] = []
        self.called: list[list[list[str]]] = []
        """Our frames, by request and step."""
        self.attached: list[list[tuple[int, int]]] = []
        """Modules with ours in the slot, and hooks of ours, when the next step begins."""
        self._frames: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_filename == step_pairs.__file__ and code.co_name == "__call__":
            if event == "call":
                if frame.f_locals["self"] not in self.requests:
                    self.requests.append(frame.f_locals["self"])
                    self.called.append([])
                    self.attached.append([])
                self.called[-1].append(self._frames)
                self._frames = []
            elif event == "return":
                modules = [*self.model.modules()]
                hooks = [hook for one in modules for name in HOOKS[:2] for hook in getattr(one, name).values()]
                ours = sum(type(hook).__module__.startswith("inferspan.") for hook in hooks)
                self.attached[-1].append((sum(SLOT in vars(one) for one in modules), ours))
        elif event == "call" and code.co_filename.startswith(OURS):
            self._frames.append(f"{os.path.basename(code.co_filename)} {code.co_name}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)


def test_steps_are_what_they_are_said_to_be() -> None:
    """Nothing of ours is called or attached in a plain step but the method of the criteria's list; in a recorded one all of it is."""
    work = _work()
    before = _state(work.model)
    witness = _Witness(work.model)
    with witness.watching():
        every, default = measure(work, [SETTINGS["all"], SETTINGS["default"]], requests=2)
    assert (every.problem, default.problem) == (None, None)
    seen: dict[tuple[str, str], list[Any]] = {}
    for one in (every, default):
        for step in one.steps:
            frames, attached = witness.called[step.request][step.step], witness.attached[step.request][step.step - 1]
            seen.setdefault((one.row.key, step.variant), []).append((frames, attached))
    assert set(seen) == {(key, variant) for key in ("all", "default") for variant in (PLAIN, AGAIN, RECORDED)}
    silent = (["criteria.py __call__"], (0, 0))
    for (key, variant), steps in seen.items():
        for frames, attached in steps:
            if variant != RECORDED:
                assert (frames, attached) == silent
            else:
                assert {"wrappers.py prepare_inputs", "wrappers.py update_model_kwargs", "call.py choose"} <= set(frames)
                # One more is the root's.
                assert attached in ([(MODULES + 1, 0)] if key == "all" else [(1, 0), (LAYERS + 1, 0)])
    assert _state(work.model) == before


def test_counts() -> None:
    """Every setting that runs here has the spans that follow from the model's structure, in all of its steps, and says why if it does not run."""
    work = _work(30)
    before = _state(work.model)
    found = {one.row.key: one for one in measure(work, [*SETTINGS.values()], requests=1)}
    if not work.cuda:
        assert {key: one.problem for key, one in found.items() if one.problem} == dict.fromkeys(("layers-device", "all-device"), "needs a GPU")
    sizes = {key: set(one.spans) for key, one in found.items()}
    assert sizes["all"] == {1 + MODULES} and sizes["layers"] == {1 + LAYERS}
    assert sizes["default"] == sizes["top-k"] == {1, 1 + LAYERS}
    assert sizes["unsampled"] == sizes["disabled"] == set()
    assert all(one.spans.total() > sum(step.variant == RECORDED for step in one.steps) > 0 for key, one in found.items() if sizes[key])
    assert not any(one.failed for one in found.values())
    assert _state(work.model) == before and "OTEL_SDK_DISABLED" not in os.environ


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_decode() -> None:
    """Of a compiled decode the settings with modules of every step are not measured; switching compiles nothing anew, which would fail the others."""
    from transformers import CompileConfig

    model = llama(**LLAMA["tiny"]).cpu().float()
    config: Any = CompileConfig(backend="eager", fullgraph=True, dynamic=False)
    config._compile_all_devices = True
    model.generation_config.compile_config = config
    rows = [SETTINGS[key] for key in ("default", "top-k", "unsampled", "all")]
    *found, every = measure(prepare("tiny", model, mode="compiled", tokens=40), rows, requests=2)
    assert compiled_graphs() > 0
    assert [(one.problem, set(one.spans)) for one in found] == [(None, {1}), (None, {1}), (None, set())] and all(one.steps for one in found)
    assert (every.failed, every.problem) == (False, "not on a compiled model: hooks inside would break its graphs")


def test_what_is_compiled_in_a_measured_request_fails_it() -> None:
    """A step that compiles says nothing of other steps."""
    work = _work()

    def request(**options: Any) -> Any:
        torch._dynamo.reset()
        torch.compile(lambda value: value + 1, backend="eager")(torch.ones(1))
        return _work().request(**options)

    (found,) = measure(replace(work, request=request), [SETTINGS["unsampled"]], requests=1)
    assert (found.failed, found.problem) == (True, "something was compiled in a request that is measured")


def test_wrong_counts_and_errors_fail_a_row() -> None:
    """A row whose spans are not those that it must give fails, and so does one that raises; the others go on."""

    def broken(work: Workload) -> Callable[[], None]:
        raise RuntimeError("no such thing\nand more")

    row = SETTINGS["layers"]
    rows = [replace(row, expected=lambda work: work.tokens), replace(row, attach=broken), row]
    wrong, bad, good = measure(_work(20), rows, requests=1)
    assert wrong.failed and wrong.problem is not None and wrong.problem.endswith("steps, not " + wrong.problem.split()[3])
    assert (bad.failed, bad.problem) == (True, "RuntimeError: no such thing")
    assert (good.failed, good.problem) == (False, None) and good.steps


def test_hooks_of_others_stay() -> None:
    """Where a module has a hook of the program's own, ours is a hook as well; in plain steps that is off, and the program's stays on."""
    work = _work()
    layer = work.model.model.layers[0]
    calls: list[int] = []
    handle = layer.register_forward_hook(lambda *_: calls.append(1))
    before = _state(work.model)
    witness = _Witness(work.model)
    with witness.watching():
        (found,) = measure(work, [SETTINGS["layers"]], requests=1)
    assert found.problem is None
    variants = {step.variant: witness.attached[step.request][step.step - 1] for step in found.steps}
    assert variants == {PLAIN: (0, 0), AGAIN: (0, 0), RECORDED: (LAYERS, 2)}
    # A plain request, one of 24 steps to warm up, and one that counts.
    assert len(calls) == 2 * work.tokens + 24 and _state(work.model) == before
    handle.remove()


def test_time_is_over() -> None:
    """When the time is over a request ends at its next step, and what was counted until then is right."""
    ticks = iter(range(10_000))
    found = measure(_work(), [SETTINGS["all"], SETTINGS["layers"]], seconds=85, clock=lambda: float(next(ticks)))
    assert [one.problem for one in found] == [None, None]
    assert max(step.step for step in found[0].steps) < 39 and not found[1].steps
    assert next(ticks) < 95


@pytest.mark.parametrize("ticks", range(50, 62, 2))
def test_interrupted(ticks: int) -> None:
    """An interrupt in any step, plain or recorded, leaves nothing behind."""
    work = _work()
    before = _state(work.model)
    left = iter(range(ticks))

    def clock() -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        measure(work, [SETTINGS["all"]], requests=5, clock=clock)
    assert _state(work.model) == before
    assert all(one.problem is None and one.steps for one in measure(work, [SETTINGS["all"]], requests=1))


def test_nothing_may_be_attached_before() -> None:
    """A model that is instrumented, or was compiled in part, has no plain steps."""
    work = _work()
    with inferspan.instrument(work.model), pytest.raises(ValueError, match="is being observed"):
        Switch(work.model)
    work.model.lm_head.compile(backend="eager")
    with pytest.raises(ValueError, match="a module was compiled"):
        Switch(work.model)


def _blocks(request: int, *blocks: tuple[str, list[float]]) -> list[Timed]:
    """Steps of blocks, with one that does not count before each."""
    steps, place = [], 5
    for variant, seconds in blocks:
        place += 1
        for one in seconds:
            steps.append(Timed(request, place, variant, one))
            place += 1
    return steps


MADE_UP = [
    *_blocks(0, (PLAIN, [1.0, 9.0, 1.0]), (RECORDED, [2.0, 3.0, 2.0]), (RECORDED, [5.0]), (AGAIN, [1.0, 3.0]), (PLAIN, [4.0, 5.0, 3.0])),
    *_blocks(1, (RECORDED, [6.0, 6.0]), (AGAIN, [3.0]), (PLAIN, [2.0, 4.0, 90.0])),
    *_blocks(2, (RECORDED, [7.0]), (AGAIN, [7.0])),
]


def test_neighbours() -> None:
    """A block's median stands beside those of the plain blocks next to it in its own request, whatever else is between them."""
    assert neighbours(MADE_UP, RECORDED) == [[(2.0, 1.0), (2.0, 4.0)], [(5.0, 1.0), (5.0, 4.0)], [(6.0, 4.0)]]
    assert neighbours(MADE_UP, AGAIN) == [[(2.0, 1.0), (2.0, 4.0)], [(3.0, 4.0)]]


def test_compare() -> None:
    """The ratio is the median of these pairs, and its interval that of drawing whole blocks: 0.5 and 2, 1.25 and 5, 1.5."""
    found = compare(MADE_UP, RECORDED)
    assert (found.median, found.pairs) == (1.5, 3)
    # Three times the first block (4 % of all draws) is the least, three times the second the most.
    assert (found.sure_low, found.sure_high) == (1.25, 3.125)
    with pytest.raises(ValueError, match="no pair"):
        compare(MADE_UP[:3], RECORDED)


def test_found_is_of_one_request_each() -> None:
    """Steps that count are in blocks of three behind one that does not, and only in requests after warming up."""
    (found,) = measure(_work(60), [SETTINGS["layers"]], requests=2)
    assert {step.request for step in found.steps} == {1, 2}
    places = Counter((step.request, step.step % 4) for step in found.steps)
    assert {place for _, place in places} == {2, 3, 0} and min(step.step for step in found.steps) == 6
    assert isinstance(found, Compared) and all(step.seconds > 0 for step in found.steps)
