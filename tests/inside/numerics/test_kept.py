"""Outputs that C code keeps until the pass ends: what is found, what is called, and what is left on a model.

Values lie in the memory of the host here, and are counted as those of a device.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inferspan import NonfiniteError, semconv
from inferspan.capture.compile.state import SLOT
from inferspan.capture.inside import hooks
from inferspan.capture.inside.watch import WatchLog
from inferspan.capture.modules.recorder import IN_C
from inferspan.capture.values import deferred
from tests.capture.modules.recorders import C, answer_of
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

NAN, INF = float("nan"), float("inf")
pytestmark = pytest.mark.skipif(not IN_C or not hasattr(Tensor, "__dlpack_c_exchange_api__"), reason="needs the C extension and a torch whose tensors it reads")


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, and the host's memory is not read."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    monkeypatch.setattr(hooks, "WatchLog", partial(WatchLog, reads_host=False))


class _Part(nn.Module):
    """Returns a tensor of its own, with bad values at calls that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: dict[int, float] = {}
        self.calls = 0
        self.other: Any = None

    def forward(self, hidden: Tensor) -> Any:
        made = hidden * 1.0
        if (value := self.bad.get(self.calls)) is not None:
            made.view(-1)[:2] = value
        self.calls += 1
        return made if self.other is None else self.other(made)


class _Parts(nn.Module):
    """Runs its parts in rounds, each with a sound input."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.parts: Any = nn.ModuleList(_Part() for _ in range(count))

    def forward(self, hidden: Tensor, rounds: int = 1) -> Tensor:
        for _ in range(rounds):
            for part in self.parts:
                part(hidden)
        return hidden


class _Counted:
    """Counts the functions of Python that are called, by the name of their module and their own."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __enter__(self) -> Counter[str]:
        def profile(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                self.found[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"] += 1

        sys.setprofile(profile)
        return self.found

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def _always(module: Any) -> None:
    forward = module.forward

    def spoilt(hidden: Tensor) -> Tensor:
        output: Tensor = forward(hidden).clone()
        output[..., 0] = INF
        return output

    module.forward = spoilt


def _proven(telemetry: Telemetry, model: nn.Module, **settings: Any) -> Any:
    """A model whose outputs are known to stay as they are."""
    handle = telemetry.instrument(model, numerics=["parts.*"], **{"modules": "none", **settings})
    model(torch.ones(3, 4), deferred.PROOF)
    return handle


@pytest.mark.parametrize("modules", ["none", "all"])
def test_only_the_first_calls_of_some_modules_run_python(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, modules: str) -> None:
    """In a request; the others run none of ours, whether or not they are recorded."""
    monkeypatch.setattr(deferred, "CHECKED", 2)
    model = _Parts()
    handle = _proven(telemetry, model, modules=modules)
    for request in range(4):
        with _Counted() as found:
            model(torch.ones(3, 4), 40)
        # One output is compared with a copy, and the next one is kept: of each module, then of two. The first call of a pass is looked at, too.
        seen = 2 * 6 if not request else 2 * 2
        assert seen <= found["inferspan.capture.inside.watch.see"] <= seen + 1
        assert found["inferspan.capture.inside.collector.append"] <= (seen + 2 if modules == "all" else 0)
    assert handle.numerics().calls == 6 * (deferred.PROOF + 160)


@pytest.mark.parametrize("seed", range(30))
def test_planted_values_are_found(telemetry: Telemetry, seed: int) -> None:
    """At random modules and calls, several in a request: module, number and order are exact, and so is the share near the limit."""
    chance = random.Random(seed)
    model, truth = _Parts(), []
    handle = _proven(telemetry, model, modules=chance.choice(["none", "all"]))
    begun, high = deferred.PROOF, 0
    for _ in range(3):
        rounds = chance.randrange(1, 30)
        for call, place in itertools.product(range(begun, begun + rounds), range(6)):
            if chance.random() < 0.03:
                value = chance.choice([NAN, INF, -INF, 3e38])
                model.parts[place].bad[call] = value
                high += value == 3e38
                if value != 3e38:
                    truth.append((call, f"parts.{place}", 2 * (value != value), 2 * (value in (INF, -INF))))
        model(torch.ones(3, 4), rounds)
        begun += rounds
    verdict = handle.numerics()
    assert (verdict.calls, verdict.elements) == (6 * begun, 6 * begun * 12)
    assert (verdict.nan_values, verdict.inf_values, verdict.near_limit) == (sum(one[2] for one in truth), sum(one[3] for one in truth), 2 * high)
    assert verdict.not_looked_at == {}
    assert Counter(one[1] for one in truth) == {one.module: one.calls for one in verdict.problematic_modules}
    if truth:
        assert verdict.first is not None
        assert (verdict.first.module, verdict.first.nan, verdict.first.inf) == truth[0][1:]
    telemetry.spans()  # what is measured of calls is recorded with their spans
    assert telemetry.metric_sum("inferspan.numerics.nonfinite") == sum(one[2] + one[3] for one in truth)
    telemetry.check()


@pytest.mark.parametrize("seed", range(10))
def test_a_bad_step_is_found_and_shown(telemetry: Telemetry, seed: int) -> None:
    """In a later request, in which outputs are kept: module and step are exact, and a span that the call has carries the count."""
    chance = random.Random(seed)
    model, step, layer = models.llama(), chance.randrange(9), chance.randrange(2)
    part = chance.choice(["", ".mlp", ".self_attn"])
    name = f"model.layers.{layer}{part}"
    handle = telemetry.instrument(model, numerics=["model.layers.*", "model.layers.*.mlp", "model.layers.*.self_attn"], modules="all", every_step=True)
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9)
        before = len(telemetry.modules())
        module = model.get_submodule(name)
        forward, calls = module.forward, itertools.count()

        def spoilt(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if next(calls) == step:
                tensor = (output[0] if isinstance(output, tuple) else output).clone()
                tensor[..., 3] = INF
                return (tensor, *output[1:]) if isinstance(output, tuple) else tensor
            return output

        module.forward = spoilt
        model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9)
    first = handle.numerics().first
    assert first is not None
    assert (first.module, first.step, first.inf) == (name, step, 6 if step == 0 else 1)
    shown: list[dict[str, Any]] = [dict(span.attributes or {}) for span in telemetry.modules()[before:]]
    bad = [one for one in shown if one.get(semconv.OUTPUT_STAT_INF_COUNT) or one.get(semconv.OUTPUT_STAT_NAN_COUNT)]
    (own,) = [one for one in bad if (one[semconv.MODULE_NAME], one[semconv.STEP_INDEX]) == (name, step)]
    assert own[semconv.OUTPUT_STAT_INF_COUNT] == first.inf
    assert min(one[semconv.STEP_INDEX] for one in bad) == step
    verdict = handle.numerics()
    assert len(bad) == sum(one.calls for one in verdict.problematic_modules)
    counts = (semconv.OUTPUT_STAT_INF_COUNT, semconv.OUTPUT_STAT_NAN_COUNT)
    shown_of_it = sum(one[key] for one in bad for key in counts if one[semconv.MODULE_NAME] == name)
    assert telemetry.metric_sum("inferspan.numerics.nonfinite", **{semconv.MODULE_NAME: name}) == shown_of_it
    telemetry.check()


def test_spans_are_the_same_with_and_without(telemetry: Telemetry) -> None:
    """The slots are shared with what records: the same calls, in the same order, under the same parents."""
    found = []
    for numerics in ("none", "all"):
        model = models.llama()
        handle = telemetry.instrument(model, numerics=numerics)
        for _ in range(2):
            before = len(telemetry.modules())
            with torch.no_grad():
                model.generate(models.prompt(), do_sample=False, max_new_tokens=12, min_new_tokens=12)
        names = {span.context.span_id: span.name for span in telemetry.spans()}
        found.append([(span.name, span.parent and names.get(span.parent.span_id)) for span in telemetry.modules()[before:]])
        handle.uninstrument()
    assert found[0] == found[1] != []


def test_nothing_is_on_the_model_afterwards(telemetry: Telemetry) -> None:
    """While a request runs its modules have something of ours in their slots, and no hooks; then they have neither."""
    model = _Parts()
    seen: list[bool] = []
    handle = _proven(telemetry, model)

    def look(made: Tensor) -> Tensor:
        seen.append(SLOT in model.parts[3].__dict__ and not model.parts[3]._forward_hooks)
        return made

    model.parts[2].other = look
    model(torch.ones(3, 4), 2)
    assert seen == [True, True]
    assert all(not part._forward_hooks and SLOT not in part.__dict__ for part in model.parts)
    handle.uninstrument()
    assert attached(model)["hooks"] == 0


def test_hooks_of_the_program_go_on(telemetry: Telemetry) -> None:
    """A module with hooks is hooked; one that gets a hook in the middle of a request is looked at after it."""
    model, ran = _Parts(), list[str]()

    def own(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        ran.append("own")
        return output * NAN

    model.parts[0].register_forward_hook(own)
    handle = _proven(telemetry, model)
    assert len(ran) == deferred.PROOF

    def late(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        ran.append("late")
        return output * INF

    def other(made: Tensor) -> Tensor:
        if not model.parts[5]._forward_hooks:
            model.parts[5].register_forward_hook(late)
        return made

    model.parts[1].other = other
    model(torch.ones(3, 4), 3)
    assert (ran.count("own"), ran.count("late")) == (deferred.PROOF + 3, 3)
    assert {one.module: one.calls for one in handle.numerics().problematic_modules} == {"parts.0": deferred.PROOF + 3, "parts.5": 3}


def test_an_output_that_is_written_to_is_not_counted(telemetry: Telemetry) -> None:
    """It is left out by reason, and the module's next outputs are counted at once."""
    model, made = _Parts(), list[Tensor]()
    handle = _proven(telemetry, model)

    def remember(output: Tensor) -> Tensor:
        made.append(output)
        return output

    model.parts[1].other = remember

    def write(output: Tensor) -> Tensor:
        if len(made) == 7:
            made[-1].fill_(NAN)
        return output

    model.parts[4].other = write
    model(torch.ones(3, 4), 10)
    assert handle.numerics().not_looked_at == {"changed in place": 1}
    assert handle.numerics().problematic_modules == ()
    assert handle.numerics().calls == 6 * (deferred.PROOF + 10) - 1
    model.parts[1].bad = {deferred.PROOF + 10 + 3: INF}
    model(torch.ones(3, 4), 10)
    assert [(one.module, one.calls) for one in handle.numerics().problematic_modules] == [("parts.1", 1)]


def test_other_outputs_go_the_long_way(telemetry: Telemetry) -> None:
    """Another shape or dtype, tuples, no tensor, and tensors of a graph or of inference mode: each is counted as it is elsewhere."""
    model = _Parts()
    handle = _proven(telemetry, model)
    kinds: list[Any] = [
        lambda made: made.double() * NAN,
        lambda made: (made * NAN, None),
        lambda made: [made, made * NAN],
        lambda made: None,
        lambda made: made[:, :2] * NAN,
        lambda made: nn.Parameter(made * NAN),
        lambda made: made.to_sparse(),
        lambda made: made,
    ]
    turns = itertools.count()
    model.parts[3].other = lambda made: kinds[next(turns) % 8](made)
    model(torch.ones(3, 4), 16)
    assert {one.module: one.calls for one in handle.numerics().problematic_modules} == {"parts.3": 10}
    assert handle.numerics().nan_values == 2 * (12 + 12 + 12 + 6 + 12)
    assert handle.numerics().not_looked_at == {"sparse": 2}
    model.parts[3].other, model.parts[2].bad = None, {deferred.PROOF + 16 + 1: NAN}
    with torch.inference_mode():
        model(torch.ones(3, 4), 3)
    assert "parts.2" in {one.module for one in handle.numerics().problematic_modules}


def test_images_in_another_order_are_counted(telemetry: Telemetry) -> None:
    """Tensors whose channels lie last, mixed with plain ones of the shape."""
    model = _Parts()
    turns = itertools.count()
    orders = (torch.channels_last, torch.contiguous_format)
    for part in model.parts:
        part.other = lambda made: made.view(1, 3, 2, 2).to(memory_format=orders[next(turns) % 7 % 2])
    handle = _proven(telemetry, model)
    model.parts[4].bad = dict.fromkeys(range(deferred.PROOF, deferred.PROOF + 20, 3), NAN)
    model(torch.ones(3, 4), 20)
    assert handle.numerics().not_looked_at == {}
    assert [(one.module, one.calls) for one in handle.numerics().problematic_modules] == [("parts.4", 7)]
    assert handle.numerics().nan_values == 14


@pytest.mark.parametrize("statistics", [False, True])
def test_outputs_without_dimensions_are_counted(telemetry: Telemetry, statistics: bool) -> None:
    """As a loss is: in requests whose outputs are counted at once, compared, and kept; those of other modules are counted beside them."""
    model = _Parts()
    model.parts[3].other = torch.sum
    model.parts[5].bad = dict.fromkeys(range(0, 40, 2), NAN)
    handle = telemetry.instrument(model, numerics=["parts.*"], modules="all" if statistics else "none", output_stats=statistics)
    model.parts[3].bad = dict.fromkeys(range(0, 40, 2), INF)
    for _ in range(4):
        model(torch.ones(3, 4), 10)
    assert handle.numerics().calls == 240
    assert handle.numerics().elements == 200 * 12 + 40
    assert {one.module: one.calls for one in handle.numerics().problematic_modules} == {"parts.3": 20, "parts.5": 20}
    assert handle.numerics().inf_values == 20


def test_raise_at_run_time(telemetry: Telemetry) -> None:
    """Set after requests whose outputs were kept, it raises in the next one."""
    model = _Parts()
    handle = _proven(telemetry, model)
    model(torch.ones(3, 4), 3)
    handle.set(on_nonfinite="raise")
    model.parts[2].bad = {deferred.PROOF + 3 + 1: INF}
    with pytest.raises(NonfiniteError, match=r"parts\.2"):
        model(torch.ones(3, 4), 3)
    assert all(SLOT not in part.__dict__ for part in model.parts)


def test_a_hook_in_the_middle_of_a_request_leaves_counts_where_they_belong(telemetry: Telemetry) -> None:
    """A module that the program hooks while a request runs is looked at once a call, and its own span has the count."""
    model, before = models.llama(), 0
    handle = telemetry.instrument(model, numerics="all", modules="all")
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9)
        calls, before = handle.numerics().calls, len(telemetry.modules())
        module = model.get_submodule("model.layers.1.mlp.up_proj")
        seen = itertools.count()

        def spoil(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            if next(seen) % 2 == 0:
                output = output.clone()
                output[..., 0] = INF
            return output

        def late(_: nn.Module, __: Any, output: Tensor) -> None:
            if not module._forward_hooks and next(steps) == 3:
                module.register_forward_hook(spoil)

        steps = itertools.count()
        head = model.lm_head.register_forward_hook(late)
        model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9)
        head.remove()
    assert handle.numerics().calls == 2 * calls
    bad = [dict(span.attributes or {}) for span in telemetry.modules()[before:] if (span.attributes or {}).get(semconv.OUTPUT_STAT_INF_COUNT)]
    assert [one[semconv.STEP_INDEX] for one in bad if one[semconv.MODULE_NAME] == "model.layers.1.mlp.up_proj"] == [4, 8]
    telemetry.check()


def test_counts_are_shown_in_all_passes_of_a_long_request(telemetry: Telemetry) -> None:
    """Detail is handed over while it runs; each bad call has its count on its span, those of the newest pass too."""
    model = models.llama()
    handle = telemetry.instrument(model, numerics=["model.layers.*"], modules="all", every_step=True, max_spans_per_trace=10**6, span_hard_cap=10**6)
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9)
        before = len(telemetry.modules())
        _always(model.model.layers[1].mlp)
        model.generate(models.prompt(), do_sample=False, max_new_tokens=200, min_new_tokens=200)
    shown = [dict(span.attributes or {}) for span in telemetry.modules()[before:]]
    of_it = [one for one in shown if one[semconv.MODULE_NAME] == "model.layers.1.mlp"]
    assert len(of_it) == 200
    assert all(one.get(semconv.OUTPUT_STAT_INF_COUNT) for one in of_it)
    assert handle.numerics().first is not None
    telemetry.check()


def test_modules_of_another_engine_keep_their_names(telemetry: Telemetry) -> None:
    """Where a model goes on with what another handle has found, numbers of modules are those of the new selection."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(models.llama(), peft.LoraConfig(target_modules=["q_proj"], r=2))
    handle = telemetry.instrument(model, numerics="all")
    with torch.no_grad():
        for _ in range(3):
            model.generate(input_ids=models.prompt(), do_sample=False, max_new_tokens=6, min_new_tokens=6)
        merged = model.merge_and_unload()
        calls = handle.numerics().calls
        for _ in range(3):
            merged.generate(models.prompt(), do_sample=False, max_new_tokens=6, min_new_tokens=6)
        each = (handle.numerics().calls - calls) // 18
        _always(merged.model.layers[1].mlp)
        merged.generate(models.prompt(), do_sample=False, max_new_tokens=6, min_new_tokens=6)
    first = handle.numerics().first
    assert first is not None
    assert first.module == "model.layers.1.mlp"
    assert handle.numerics().calls == calls + 24 * each


def test_modes_of_the_program_see_nothing(telemetry: Telemetry) -> None:
    """What a mode counts is what it counts without."""

    class Seen(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: Counter[Any] = Counter()

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.found[function] += 1
            return function(*args, **(kwargs or {}))

    model, found = _Parts(), []
    for watched in (False, True):
        handle = _proven(telemetry, model) if watched else None
        with Seen() as seen:
            model(torch.ones(3, 4), 5)
        found.append(seen.found)
        if handle is not None:
            assert handle.numerics().calls == 6 * (deferred.PROOF + 5)
    assert found[0] == found[1]


def test_memory_is_bounded(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """More outputs than may be kept are counted in between, and none is missed."""
    monkeypatch.setattr(deferred, "MOST_KEPT", 20)
    model = _Parts()
    handle = _proven(telemetry, model)
    model.parts[0].bad = dict.fromkeys(range(deferred.PROOF, deferred.PROOF + 100, 7), NAN)
    model(torch.ones(3, 4), 100)
    assert handle.numerics().calls == 6 * (deferred.PROOF + 100)
    assert [(one.module, one.calls) for one in handle.numerics().problematic_modules] == [("parts.0", 15)]


def _keeper(modules: int = 2, most: int = 4) -> Any:
    return C.KeptOutputs(modules, most, 1 << 20, 100, 1 << 10, 1 << 12, (lambda index: 0, lambda: False, lambda: None, lambda: False), False)


def test_what_may_be_kept() -> None:
    """Plain tensors of floating point numbers in a small memory, of at most five dimensions, on one device and stream."""
    keeper, tensor = _keeper(), torch.ones(3)
    assert keeper.allow(0, tensor, 0) is True
    for other in (torch.ones(1, 1, 1, 1, 1, 1), "no tensor", torch.ones(3, dtype=torch.int64), torch.ones(0), torch.ones(2000), torch.ones(9000)[:3]):
        assert keeper.allow(1, other, 0) is False
    assert keeper.allow(1, tensor.double(), 0) is True
    assert (keeper.count, keeper.bytes, keeper.counted(), keeper.take()) == (0, 0, [], ([], b""))
    other = _keeper()
    other.learn(keeper)
    other.drop()
    other.refuse()
    with pytest.raises(ValueError, match="same modules"):
        _keeper(3).learn(keeper)


@pytest.mark.parametrize(
    "call",
    [
        lambda: C.KeptOutputs(),
        lambda: C.KeptOutputs(-1, 4, 1, 1, 1, 1, (None,) * 4, False),
        lambda: C.KeptOutputs(1, 4, 1, 1, 1, 1, (None,), False),
        lambda: _keeper().allow(2, torch.ones(1), 0),
        lambda: _keeper().learn(5),
        lambda: _keeper().allow(0),
        lambda: _keeper().refuse("a"),
        lambda: C.CallLog().cut().mark("a", 0),
        lambda: C.CallLog().cut().end_of(0),
    ],
)
def test_bad_values_in_c(call: Any) -> None:
    """What C code is given wrongly raises; it does not end the process."""
    assert answer_of(call) in (TypeError, ValueError, IndexError)
