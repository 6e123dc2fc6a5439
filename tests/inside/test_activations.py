"""Activations: figures of outputs against float64, all tensors of an output, which modules, and the history of a module."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from inferspan.settings import SettingsError
from inferspan.summaries.activations import ModuleFigures, ModuleRow
from tests.cases import models
from tests.cases.telemetry import Telemetry


class _Parts(nn.Module):
    """Returns several tensors, of which one has no statistics."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return hidden, {"ids": hidden.long(), "double": hidden * 2.0, "half": hidden.half()}


class _Net(nn.Module):
    """A linear layer, a ReLU, and a module with several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu, self.parts = nn.Linear(6, 9), nn.ReLU(), _Parts()

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.parts(self.relu(self.linear(hidden)))[0]
        return result


def _attributes(telemetry: Telemetry, name: str) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in telemetry.modules() if (span.attributes or {})[semconv.MODULE_NAME] == name]


def test_sparsity_is_the_share_of_zeros(telemetry: Telemetry) -> None:
    """Against float64: half of what a ReLU returns is zero, and a linear layer returns none."""
    model, hidden = _Net(), torch.randn(7, 6)
    handle = telemetry.instrument(model, modules="all", output_stats=True)
    with torch.no_grad():
        model(hidden)
        want = (model.relu(model.linear(hidden)).double() == 0).double().mean().item()
    (found,) = _attributes(telemetry, "relu")
    assert 0.2 < want < 0.8
    assert found[semconv.OUTPUT_STAT_SPARSITY] == pytest.approx(want, abs=1e-12)
    assert _attributes(telemetry, "linear")[0][semconv.OUTPUT_STAT_SPARSITY] == 0.0
    (row,) = handle.activations("relu")
    assert row.outputs is not None
    assert row.outputs.sparsity == pytest.approx(want, abs=1e-12)
    telemetry.check()


def test_every_tensor_of_an_output_has_figures(telemetry: Telemetry) -> None:
    """One entry for each floating point tensor in order; those of the first stand alone as well."""
    model, hidden = _Net(), torch.randn(7, 6)
    telemetry.instrument(model, modules=["parts"], output_stats=True)
    with torch.no_grad():
        first, others = model.parts(model.relu(model.linear(hidden)))
        model(hidden)
    (found,) = _attributes(telemetry, "parts")
    whole = [first, others["double"], others["half"]]
    means = [part.double().mean().item() for part in whole]
    deviations = [part.double().std(correction=0).item() for part in whole]
    assert list(found["inferspan.outputs.stat.mean"]) == pytest.approx(means, rel=1e-5)
    assert list(found["inferspan.outputs.stat.std"]) == pytest.approx(deviations, rel=1e-5)
    assert list(found["inferspan.outputs.stat.element_count"]) == [63, 63, 63]
    assert found[semconv.OUTPUT_STAT_MEAN] == pytest.approx(means[0], rel=1e-5)
    telemetry.check()


def test_an_array_with_a_missing_figure_is_left_out(telemetry: Telemetry) -> None:
    """A tensor of NaN has no mean, so the array of means is not there; that of the counts is."""
    model = _Net()
    telemetry.instrument(model, modules=["parts"], output_stats=True)
    with torch.no_grad():
        model.linear.bias.fill_(float("nan"))
        model(torch.randn(2, 6))
    (found,) = _attributes(telemetry, "parts")
    assert "inferspan.outputs.stat.mean" not in found
    assert list(found["inferspan.outputs.stat.nan_count"]) == [18, 18, 18]
    telemetry.check()


def _has_weight(path: str, module: nn.Module) -> bool:
    return path.startswith("lin") and hasattr(module, "weight")


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        pytest.param("lin*", ["linear"], id="glob"),
        pytest.param("re:re.u|parts", ["parts", "relu"], id="expression"),
        pytest.param("re:elu", None, id="expression from the start"),
        pytest.param("ReLU", ["relu"], id="name of a class"),
        pytest.param("Module", None, id="name of every class"),
        pytest.param(nn.Linear, ["linear"], id="class"),
        pytest.param(_Parts, ["parts"], id="own class"),
        pytest.param(_has_weight, ["linear"], id="function"),
        pytest.param(nn.Conv1d, None, id="class of no module"),
    ],
)
def test_modules_by_pattern(telemetry: Telemetry, pattern: Any, chosen: list[str] | None) -> None:
    """A glob, an expression from the start of the path, the name of a class, a class, and a function; one without a match raises."""
    model = _Net()
    if chosen is None:
        with pytest.raises(SettingsError, match="matches no module"):
            telemetry.instrument(model, modules=[pattern])
        return
    telemetry.instrument(model, modules=[pattern])
    model(torch.randn(2, 6))
    assert sorted(str((span.attributes or {})[semconv.MODULE_NAME]) for span in telemetry.modules()) == chosen


def test_an_expression_that_is_none_is_refused() -> None:
    """When the settings are made, with the reason."""
    with pytest.raises(SettingsError, match="is no regular expression"):
        inferspan.Settings(modules=["re:(model"])


def test_the_history_of_a_module(telemetry: Telemetry) -> None:
    """The latest 32 calls in order, each with its step, time and figures; older ones are counted."""
    model = models.llama()
    handle = telemetry.instrument(model, modules=["lm_head"], output_stats=True, every_step=True)
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=40, min_new_tokens=40)
    (row,) = handle.activations("lm_head")
    assert [call.step for call in row.history] == list(range(8, 40))
    assert row.forgotten == 8
    assert row.calls == 40
    starts = [call.start_ns for call in row.history]
    assert starts == sorted(starts)
    spans = _attributes(telemetry, "lm_head")
    assert [call.output.mean for call in row.history] == [span[semconv.OUTPUT_STAT_MEAN] for span in spans[8:]]


def test_activations_print_a_line_for_each_module(telemetry: Telemetry) -> None:
    """Shape, dtype, figures with four decimals, and the number of calls, in the model's order."""
    model = _Net()
    handle = telemetry.instrument(model, modules="all", output_stats=True)
    assert str(handle.activations()) == "no module has been recorded"
    model(torch.randn(7, 6))
    linear, relu, _parts = str(handle.activations()).splitlines()
    assert re.fullmatch(r"linear \(Linear\): 7x9 float32, mean -?\d\.\d{4}, std \d\.\d{4}, range \[-\d\.\d{4}, \d\.\d{4}\], 1 call", linear)
    assert re.search(r"\d zeros|% zeros", relu)
    assert len(handle.activations()) == 3


class _Gives(nn.Module):
    """Returns what it is given."""

    def forward(self, output: Tensor) -> Tensor:
        return output


def _given(telemetry: Telemetry, *outputs: Tensor) -> ModuleRow:
    model = nn.Sequential(_Gives())
    handle = telemetry.instrument(model, modules="all", output_stats=True)
    for output in outputs:
        model(output)
    telemetry.check()
    (row,) = handle.activations()
    return row


LARGE = {
    "strided": torch.full((8, 6), 1e30)[:, ::2],
    "bfloat16": torch.full((1100, 1000), 3e36, dtype=torch.bfloat16),
    "several": torch.tensor([[2e19, 0.0], [-2e19, 0.0], [1.0, 0.0]])[:, 0],
    "float64": torch.full((4, 4), 1e300, dtype=torch.float64),
}


@pytest.mark.parametrize("output", LARGE.values(), ids=LARGE)
def test_very_large_outputs_have_a_mean(telemetry: Telemetry, output: Tensor) -> None:
    """Their squares are too large for their dtype."""
    row = _given(telemetry, output)
    assert row.outputs is not None
    assert row.outputs.mean == pytest.approx(float(output.double().mean()), rel=1e-6)


@pytest.mark.parametrize("output", LARGE.values(), ids=LARGE)
def test_very_large_outputs_are_printed(telemetry: Telemetry, output: Tensor) -> None:
    """They are finite."""
    assert "no finite value" not in str(_given(telemetry, output))


def test_very_large_numbers_are_short(telemetry: Telemetry) -> None:
    """With an exponent, not with thirty digits."""
    assert "mean 1.0000e+30, std 0.0000, range [1.0000e+30, 1.0000e+30]" in str(_given(telemetry, LARGE["strided"]))


def test_the_range_of_all_calls_has_the_very_large_ones(telemetry: Telemetry) -> None:
    """One of zeros, and one near the largest number."""
    row = _given(telemetry, torch.zeros(8, 6)[:, ::2], torch.full((8, 6), 3e38)[:, ::2])
    assert row.outputs is not None
    assert row.outputs.range is not None
    assert row.outputs.range[1] == pytest.approx(3e38)


def test_the_deviation_of_all_calls_has_the_very_large_ones(telemetry: Telemetry) -> None:
    """The square of a deviation may be too large, the deviation is not."""
    row = _given(telemetry, torch.full((4,), -1e300, dtype=torch.float64), torch.full((4,), 1e300, dtype=torch.float64))
    assert row.outputs is not None
    assert row.outputs.std == pytest.approx(1e300)


def _of_calls(*calls: dict[str, Any]) -> ModuleRow:
    figures = ModuleFigures("layer", "Linear", 0)
    for statistics in calls:
        figures.add((), (), {semconv.OUTPUT_STAT_ELEMENT_COUNT: 4, **statistics})
    return figures.row()


PARTLY = {semconv.OUTPUT_STAT_MEAN: 1.0, semconv.OUTPUT_STAT_MIN: -2.0, semconv.OUTPUT_STAT_MAX: 3.0}


def test_a_figure_that_is_not_known_leaves_the_others() -> None:
    """As of a recording by another version, in which a call has no deviation."""
    found = _of_calls({**PARTLY, semconv.OUTPUT_STAT_STD: 0.0}, {**PARTLY, semconv.OUTPUT_STAT_MAX: 9.0}).outputs
    assert found is not None
    assert (found.mean, found.std, found.range) == (1.0, None, (-2.0, 9.0))


def test_a_figure_that_is_not_known_is_not_printed() -> None:
    """The others are."""
    assert str(_of_calls(PARTLY).last) == "mean 1.0000, range [-2.0000, 3.0000]"
