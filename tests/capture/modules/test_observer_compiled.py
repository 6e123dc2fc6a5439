"""Observed modules that are compiled, scripted or traced, in the middle of a pass or before it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # so that it can tell when something is compiled
from torch import Tensor, nn

from inferspan import semconv
from inferspan.capture.compile.state import SLOT
from inferspan.capture.modules import groups as module_groups
from tests.capture.modules.observed import ONES, Holder, Scaled, run
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

pytestmark = pytest.mark.usefixtures("nothing_compiled")



@pytest.mark.parametrize("by", ["slot", "hooks"])
def test_script_and_trace_in_the_middle_of_a_pass(telemetry: Telemetry, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchScript makes of an observed module what it makes of a plain one."""
    if by == "hooks":
        monkeypatch.setattr(module_groups, "can_observe", lambda module: False)

    def inside(parts: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # TorchScript refuses a module with a hook that it cannot script, whoever it is from.
            made = [torch.jit.trace(parts[0], ONES), *([torch.jit.script(parts[0])] if by == "slot" else [])]
        return [(one(ONES).tolist(), re.sub(r"___torch_mangle_\d+\.", "", str(one.graph))) for one in made]

    torch.manual_seed(0)
    # What has no annotations of its own has those of nn.Module, the slot's among them.
    part = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Sequential(nn.ReLU()))
    plain = inside([part])
    model = Holder(part)
    observed = run(telemetry, model, inside)
    assert observed == plain


@pytest.mark.parametrize("make", [torch.jit.script, lambda part: torch.jit.trace(part, ONES)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parts_of_torchscript(telemetry: Telemetry, make: Callable[[nn.Module], Any]) -> None:
    """A part that TorchScript runs is one call, and what is inside of it none."""
    model = Holder(make(nn.Sequential(Scaled().eval(), nn.ReLU()) if make is not torch.jit.script else nn.Sequential(nn.ReLU())), Scaled())
    expected = model(ONES)
    run(telemetry, model, lambda parts: None)
    assert torch.equal(model(ONES), expected) and "layer 1" in [span.name for span in telemetry.modules()]


def test_compiled_in_the_middle_of_a_pass(telemetry: Telemetry) -> None:
    """What ``module.compile()`` puts into the slot stays there."""
    part = Scaled()
    model = Holder(part)
    run(telemetry, model, lambda parts: parts[0].compile(backend="eager"))
    assert vars(part)[SLOT] is not None and type(vars(part)[SLOT]).__name__ == "function"
    assert torch.equal(model(ONES), ONES * 2)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_the_fast_path_of_torch_stays(telemetry: Telemetry) -> None:
    """An encoder of torch that takes its fused path without hooks takes it observed as well, and gives the same bits."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False).eval()
    x = torch.randn(1, 3, 8)

    def fused() -> tuple[Tensor, bool]:
        with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            y = encoder(x)
        return y, any(event.key == "aten::_transformer_encoder_layer_fwd" for event in profile.key_averages())

    plain, path = fused()
    with telemetry.instrument(encoder, modules="all"):
        observed = fused()
    assert path and observed[1] and torch.equal(plain, observed[0])
    assert [span.name for span in telemetry.modules()] == ["layer 0", "layer 1"]


def test_traced_by_dynamo_in_the_middle_of_a_pass(telemetry: Telemetry) -> None:
    """A function that is compiled in the middle of an observed pass makes as many graphs and breaks as without us; all calls are seen."""

    def graphs(instrumented: bool) -> tuple[int, int, list[Tensor]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = Holder(Scaled(3.0))
        compiled = torch.compile(lambda part, x: part(x) + 1, backend="eager")
        found: list[Tensor] = []
        handle = telemetry.instrument(model, modules="all") if instrumented else None
        kinds = []

        def inside(parts: Any) -> None:
            kinds.append(attached(parts))
            found.append(compiled(parts[0], ONES))
            kinds.append(attached(parts))

        model.inside = inside
        for _ in range(2):
            model(ONES)
        if handle is not None:
            handle.uninstrument()
            nothing = {"slot": 0, "hooks": 0, "left": 0}
            assert kinds == [{**nothing, "slot": 1}, *[{**nothing, "hooks": 1}] * 3]
        model(ONES)
        counters = torch._dynamo.utils.counters
        return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()), found

    plain, observed = graphs(False), graphs(True)
    assert plain[:2] == observed[:2] == (1, 0)
    assert all(torch.equal(one, other) for one, other in zip(plain[2], observed[2], strict=True))
    assert len(telemetry.modules()) == 2
    assert [(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.forwards()] == ["modules: compiled in parts"] * 2
