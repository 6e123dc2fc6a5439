"""Gradients of modules: figures against float64, spans in the trace of the forward pass, and training that stays the same to the last bit."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import ReadableSpan
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from inferspan.capture.gradients.figures import GradientFigures
from inferspan.report.session import read_session
from inferspan.settings import SettingsError
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

from .nets import Net, train

IDS = torch.arange(10).view(2, 5)


def backwards(telemetry: Telemetry) -> list[ReadableSpan]:
    """Spans of backward passes."""
    return telemetry.spans(semconv.SPAN_BACKWARD)


def module_calls(telemetry: Telemetry) -> list[str]:
    """Modules with a backward call, in the order in which they began."""
    found = [span for span in telemetry.modules() if (span.attributes or {})[semconv.PHASE] == semconv.SPAN_BACKWARD]
    return [str((span.attributes or {})[semconv.MODULE_NAME]) for span in found]


def _exact(gradient: Tensor) -> dict[str, float]:
    values = gradient.double().flatten()
    values = values[values.isfinite()]
    return {
        "mean": float(values.mean()), "std": float(values.std(correction=0)), "min": float(values.min()), "max": float(values.max()),
        "norm": float(torch.linalg.vector_norm(values)),
    }  # fmt: skip


def _agree(figures: GradientFigures | None, gradient: Tensor) -> None:
    assert figures is not None
    for name, value in _exact(gradient).items():
        assert getattr(figures, name) == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert figures.elements == gradient.numel()


@pytest.mark.parametrize("path", ["layers.0", "layers.1", "layers.0.up", "layers.1.gate", "layers.1.down", "layers.0.act", "head"])
def test_figures_agree_with_autograd_in_float64(telemetry: Telemetry, path: str) -> None:
    """Of the output as it is given to the module; of the input as the module alone computes it from that, although others use it too."""
    model = Net().eval()
    exact = copy.deepcopy(model).double()
    seen: dict[str, Any] = {}

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.update(given=args[0].detach().clone(), output=output)

    module = exact.get_submodule(path)
    if path.endswith("act"):
        module.inplace = False  # type: ignore[assignment]
    with_hook = module.register_forward_hook(keep)
    loss = exact(IDS).pow(2).sum()
    (of_output,) = torch.autograd.grad(loss, seen["output"])
    with_hook.remove()
    given = seen["given"].requires_grad_()
    (of_input,) = torch.autograd.grad(module(given), given, of_output)

    handle = telemetry.instrument(model, gradients=[path])
    model(IDS).pow(2).sum().backward()
    row = next(row for row in handle.gradients() if row.module == path)
    _agree(row.outputs, of_output)
    _agree(row.inputs, of_input)
    assert row.calls == 1
    telemetry.check()


def test_attributes_of_a_backward_call(telemetry: Telemetry) -> None:
    """They are those of the handle's row; the span names the module and is in the trace of its forward pass."""
    model = Net().eval()
    handle = telemetry.instrument(model, gradients=["head"], modules="none")
    model(IDS).sum().backward()
    (forward,), (backward,) = telemetry.forwards(), backwards(telemetry)
    (span,) = telemetry.modules()
    row = handle.gradients()[1]
    assert row.inputs is not None
    assert span.name == "backward head"
    attributes = span.attributes or {}
    assert attributes[semconv.GRAD_INPUTS["norm"]] == row.inputs.norm
    assert attributes[semconv.GRAD_OUTPUTS["element_count"]] == 50
    assert attributes[semconv.GRAD_OUTPUTS["nan_count"]] == 0
    assert attributes[semconv.MODULE_TYPE] == "Linear"
    assert span.parent == backward.context
    assert backward.parent == forward.context
    assert (backward.attributes or {})[semconv.GRAD_OUTPUTS["mean"]] == 1.0
    assert (backward.attributes or {})[semconv.BACKWARD_MODULES] == 1
    telemetry.check()


def test_the_tree_of_a_backward_pass(telemetry: Telemetry) -> None:
    """Backward calls lie in those of the modules around them, and come in the opposite order."""
    model = Net()
    telemetry.instrument(model, gradients="all", modules="none")
    model(IDS).sum().backward()
    spans = {span.context.span_id: span for span in telemetry.spans() if span.context is not None}
    lines = []
    for span in sorted(spans.values(), key=lambda one: one.start_time or 0):
        depth, above = 0, span.parent
        while above is not None:
            depth, above = depth + 1, spans[above.span_id].parent
        lines.append("  " * depth + span.name)
    block = ["down", "drop", "act", "gate", "up"]
    assert lines == [
        "forward Net", "  backward", "    backward head",
        "    backward layer 1", *(f"      backward layer 1 {name}" for name in block),
        "    backward layer 0", *(f"      backward layer 0 {name}" for name in block),
        "    backward embed",
    ]  # fmt: skip
    telemetry.check()


def _same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(mine, theirs), index


def test_training_stays_the_same(telemetry: Telemetry) -> None:
    """Losses, gradients, parameters and random numbers, with dropout, in-place activations and every module looked at."""
    plain = Net()
    model = copy.deepcopy(plain)
    telemetry.instrument(model, gradients="all")
    _same(train(model, IDS), train(plain, IDS))
    assert len(backwards(telemetry)) == 3
    telemetry.check()


def test_training_of_a_decoder_stays_the_same(telemetry: Telemetry) -> None:
    """A causal model of transformers with a loss of its own."""
    plain = models.llama()
    plain.train()
    model = copy.deepcopy(plain)
    handle = telemetry.instrument(model, gradients="layers")

    def run(one: Any) -> list[Tensor]:
        return train(_Causal(one), models.prompt(), 2, loss=lambda output: output.loss)

    _same(run(model), run(plain))
    names = [row.module for row in handle.gradients()]
    assert names[:4] == ["", "model.layers.0", "model.layers.0.self_attn", "model.layers.0.mlp"]
    assert all(row.calls == 2 for row in handle.gradients())
    telemetry.check()


class _Causal:
    """Calls a causal model with its prompt as labels."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, ids: Tensor) -> Any:
        return self.model(input_ids=ids, labels=ids)

    def parameters(self) -> Any:
        return self.model.parameters()


def test_several_backward_passes_of_one_forward_pass(telemetry: Telemetry) -> None:
    """Each has a span of its own, numbered, with all of its modules."""
    model = Net()
    handle = telemetry.instrument(model, gradients=["layers.*"], modules="none")
    loss = model(IDS).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert [(span.attributes or {})[semconv.BACKWARD_NUMBER] for span in backwards(telemetry)] == [0, 1]
    assert [span.parent for span in backwards(telemetry)] == [telemetry.forwards()[0].context] * 2
    assert (handle.gradients().forwards, handle.gradients().backwards) == (1, 2)
    assert {row.calls for row in handle.gradients()} == {2}
    telemetry.check()


def test_one_backward_pass_of_several_forward_passes(telemetry: Telemetry) -> None:
    """Each forward pass gets its own span, with the modules of its own graph."""
    model = Net()
    handle = telemetry.instrument(model, gradients=["head"], modules="none")
    (model(IDS).sum() + 2 * model(IDS).sum()).backward()
    above = [span.parent.span_id for span in backwards(telemetry) if span.parent is not None]
    assert sorted(above) == sorted(span.context.span_id for span in telemetry.forwards() if span.context is not None)
    means = {(span.attributes or {})[semconv.GRAD_OUTPUTS["mean"]] for span in telemetry.modules()}
    assert means == {1.0, 2.0}
    assert handle.gradients().backwards == 2
    telemetry.check()


def test_a_module_that_is_called_twice(telemetry: Telemetry) -> None:
    """Each call has its own span."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    telemetry.instrument(model, gradients=[nn.Linear], modules="none")
    model(torch.ones(2, 4)).sum().backward()
    assert module_calls(telemetry) == ["0", "0"]
    telemetry.check()


def test_a_part_of_the_gradients(telemetry: Telemetry) -> None:
    """``torch.autograd.grad`` of one parameter goes through a part of the graph: only those modules have spans."""
    model = Net()
    telemetry.instrument(model, gradients="layers", modules="none")
    torch.autograd.grad(model(IDS).sum(), model.layers[1].down.weight)  # type: ignore[union-attr, arg-type]
    assert module_calls(telemetry) == ["layers.1", "layers.1.down"]
    telemetry.check()


def test_gradients_of_gradients(telemetry: Telemetry) -> None:
    """With ``create_graph`` the results are those of a plain run."""
    plain = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    model = copy.deepcopy(plain)
    telemetry.instrument(model, gradients="all")

    def penalty(one: nn.Module) -> list[Tensor]:
        given = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(one(given).sum(), given, create_graph=True)
        first.pow(2).sum().backward()
        return [first.detach(), *(parameter.grad for parameter in one.parameters() if parameter.grad is not None)]

    _same(penalty(model), penalty(plain))
    assert len(backwards(telemetry)) == 2
    telemetry.check()


def test_nan_and_inf_are_counted_and_the_first_module_is_named(telemetry: Telemetry) -> None:
    """The square root of zero has an infinite gradient; it begins where the backward pass meets it."""

    class Root(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden.sqrt()

    first: Any = nn.Linear(3, 3)
    model = nn.Sequential(first, nn.ReLU(), Root(), nn.Linear(3, 2))
    with torch.no_grad():
        first.weight.zero_()
        first.bias.copy_(torch.tensor([-1.0, 1.0, 2.0]))
    handle = telemetry.instrument(model, gradients="all", modules="none")
    model(torch.ones(4, 3)).sum().backward()
    (backward,) = backwards(telemetry)
    attributes = backward.attributes or {}
    assert attributes[semconv.BACKWARD_FIRST_NONFINITE] == "2"
    rows = {row.module: row for row in handle.gradients()}
    assert rows["2"].inputs is not None
    assert rows["2"].inputs.inf == 4
    assert rows["2"].inputs.norm is not None
    assert rows["2"].inputs.elements == 12
    assert attributes[semconv.BACKWARD_INF_COUNT] == sum(
        one.inf for row in rows.values() if row.module for one in (row.inputs, row.outputs) if one is not None
    )
    named = handle.gradients().first_nonfinite
    assert named is not None
    assert named.module == "2"
    telemetry.check()


# ------------------------------------------------------------------------------------------------------------- lifetime
def test_a_forward_pass_without_a_backward_pass_is_freed(telemetry: Telemetry) -> None:
    """Nothing of ours keeps its graph, without a run of the garbage collector."""
    model = Net()
    handle = telemetry.instrument(model, gradients="all")
    gc.disable()
    try:
        output = model(IDS)
        tensor = weakref.ref(output)
        kept: Any = torch.ones(3, requires_grad=True)
        output = output * kept.sum()
        reference = weakref.ref(kept)
        del output, kept
        assert reference() is None
        assert tensor() is None
    finally:
        gc.enable()
    assert (handle.gradients().forwards, handle.gradients().backwards) == (1, 0)
    telemetry.check()


def test_nothing_is_kept_after_a_backward_pass(telemetry: Telemetry) -> None:
    """The input of the model, its gradient and the output are freed with the program's references."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    telemetry.instrument(model, gradients="all")
    gc.disable()
    try:
        given = torch.ones(2, 4, requires_grad=True)
        output = model(given)
        output.sum().backward()
        assert given.grad is not None
        references = [weakref.ref(given), weakref.ref(output), weakref.ref(given.grad)]
        del given, output
        assert [reference() for reference in references] == [None, None, None]
    finally:
        gc.enable()


def test_hooks_on_a_waiting_graph_are_removed(telemetry: Telemetry) -> None:
    """After ``uninstrument()`` the backward pass of an earlier forward pass is not seen, and nothing is on the model."""
    model = Net()
    handle = telemetry.instrument(model, gradients="all")
    loss = model(IDS).sum()
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}
    handle.uninstrument()
    loss.backward()
    assert backwards(telemetry) == []
    telemetry.check()


def test_a_failing_backward_pass(telemetry: Telemetry) -> None:
    """Its span says that it has failed, and has the modules that came before; the next one is recorded as ever."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Tensor) -> Tensor:
            return given.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            raise ValueError("no gradient")

    class Part(nn.Module):
        failing = True

        def forward(self, hidden: Tensor) -> Tensor:
            result: Any = Fails.apply(hidden) if self.failing else hidden * 2
            return result

    part = Part()
    model = nn.Sequential(nn.Linear(3, 3), part, nn.Linear(3, 2))
    telemetry.instrument(model, gradients="all", modules="none")
    with pytest.raises(ValueError, match="no gradient"):
        model(torch.ones(2, 3)).sum().backward()
    gc.collect()
    part.failing = False
    model(torch.ones(2, 3)).sum().backward()
    failed, whole = backwards(telemetry)
    assert (failed.attributes or {})[semconv.ERROR_TYPE] == "_OTHER"
    assert semconv.ERROR_TYPE not in (whole.attributes or {})
    assert module_calls(telemetry) == ["2", "1", "2", "1", "0"]
    telemetry.check()


# ------------------------------------------------------------------------------------------------------------- settings
def test_the_setting_can_change_at_run_time(telemetry: Telemetry) -> None:
    """From the next request on; the one before keeps its own."""
    model = Net()
    handle = telemetry.instrument(model, modules="none")
    first = model(IDS).sum()
    handle.set(gradients=["head"])
    second = model(IDS).sum()
    handle.set(gradients="none")
    third = model(IDS).sum()
    for loss in (first, second, third):
        loss.backward()
    assert [span.parent for span in backwards(telemetry)] == [telemetry.forwards()[1].context]
    assert module_calls(telemetry) == ["head"]
    telemetry.check()


def test_a_pattern_that_matches_nothing(telemetry: Telemetry) -> None:
    """It raises, also at run time, and everything stays as it was."""
    with pytest.raises(SettingsError, match=r"'gradients'.*matches no module"):
        telemetry.instrument(Net(), gradients=["nowhere"])
    model = Net()
    handle = telemetry.instrument(model)
    with pytest.raises(SettingsError, match=r"'gradients'.*matches no module"):
        handle.set(gradients=["nowhere"])
    assert handle.settings.gradients == "none"


def test_without_gradients_nothing_is_recorded(telemetry: Telemetry) -> None:
    """Under ``no_grad`` and ``inference_mode`` there is no graph."""
    model = Net()
    handle = telemetry.instrument(model, gradients="all")
    with torch.no_grad():
        model(IDS)
    with torch.inference_mode():
        model(IDS)
    assert (len(handle.gradients()), handle.gradients().forwards) == (0, 0)
    telemetry.check()


def test_calls_over_the_budget_are_counted(telemetry: Telemetry) -> None:
    """Outer modules are kept; figures on the handle are of all."""
    model = Net()
    handle = telemetry.instrument(model, gradients="all", modules="none", max_spans_per_trace=5)
    model(IDS).sum().backward()
    (backward,) = backwards(telemetry)
    kept = module_calls(telemetry)
    assert (backward.attributes or {})[semconv.SPANS_DROPPED] == 14 - len(kept)
    assert kept == ["head", "layers.1", "layers.0", "embed"][: len(kept)]
    assert len(handle.gradients()) == 15
    telemetry.check()


def test_not_instrumented_handles_have_no_gradients() -> None:
    """With ``enabled=False`` there is an empty table."""
    handle = inferspan.instrument(Net(), enabled=False)
    assert str(handle.gradients()) == "gradients: 0 backward of 0 forward passes"


def test_figures_of_two_calls_are_those_of_all_values(telemetry: Telemetry) -> None:
    """Mean, deviation, extremes and norm join."""
    model = nn.Sequential(nn.Identity(), nn.Linear(3, 2))
    handle = telemetry.instrument(model, gradients=["1"])
    gradients = [torch.randn(5, 2), torch.randn(5, 2) * 3 + 1]
    for gradient in gradients:
        model(torch.ones(5, 3)).backward(gradient)
    row = handle.gradients()[1]
    _agree(row.outputs, torch.cat(gradients))
    _agree(row.last_outputs, gradients[1])
    assert row.seconds >= 0
    assert math.isfinite(row.seconds)


def test_backward_calls_in_a_session_file_and_its_report(tmp_path: Path) -> None:
    """They are operations of their own, add nothing to the time inside of a request, and are no calls of the forward pass."""
    model = Net().eval()
    path = tmp_path / "training.otlp.jsonl"
    handle = inferspan.instrument(model, gradients=["head"], modules=["head"], session_file=str(path), nvml=False, host=False)
    try:
        for _ in range(2):
            model(IDS).sum().backward()
        inferspan.flush()
        summary = {operation.name: operation for operation in handle.summary().operations}
        assert summary["backward head"].count == 2
        assert summary["head"].count == 2
        assert summary["backward"].count == 2
        (row,) = handle.activations()
        assert row.calls == 2
        session = read_session(path)
        found = {operation.name: operation for operation in session.tally.operations.rows()}
        assert {name: found[name].count for name in ("backward", "backward head", "head")} == dict.fromkeys(
            ("backward", "backward head", "head"), 2
        )
        (request, _) = session.requests
        assert [child.name for child in request.span.children] == ["head", "backward"]
        assert [child.name for child in request.span.children[1].children] == ["backward head"]
    finally:
        handle.uninstrument()


class Many(nn.Module):
    """Has ten outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(10))

    def forward(self, hidden: Tensor) -> list[Tensor]:
        return [part(hidden) for part in self.parts]


def test_all_of_many_outputs(telemetry: Telemetry) -> None:
    """However many a module has, their gradients count together."""
    model = nn.Sequential(Many())
    handle = telemetry.instrument(model, gradients=["0"])
    torch.stack([output.sum() * (place + 1) for place, output in enumerate(model(torch.ones(2, 4)))]).sum().backward()
    (row,) = [row for row in handle.gradients() if row.module == "0"]
    assert row.outputs is not None and row.outputs.norm == pytest.approx(math.sqrt(8 * sum(place * place for place in range(1, 11))))
    telemetry.check()
