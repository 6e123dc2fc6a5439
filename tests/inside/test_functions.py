"""``handle.on_module()``: what functions get and return, what is contained, and that nothing of the model changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import guard, semconv
from inferspan.settings import SettingsError
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached


class _Net(nn.Module):
    """Two layers, of which one takes a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), _Scaled()

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(hidden), scale=3)
        return result


class _Scaled(nn.Module):
    def forward(self, hidden: Tensor, scale: int = 1) -> Tensor:
        return hidden * scale


HIDDEN = torch.arange(8.0).view(2, 4)


def test_functions_get_the_call(telemetry: Telemetry) -> None:
    """Module, arguments, output and path; no output before the call."""
    model = _Net()
    handle = telemetry.instrument(model)
    seen: list[tuple[Any, ...]] = []
    handle.on_module("second", lambda *given: seen.append(given), when="before")
    handle.on_module("second", lambda *given: seen.append(given))
    output = model(HIDDEN)
    before, after = seen
    assert before[0] is after[0] is model.second
    assert torch.equal(before[1][0], model.first(HIDDEN))
    assert before[2] == after[2] == {"scale": 3}
    assert before[3] is None
    assert torch.equal(after[3], output)
    assert before[4] == after[4] == "second"
    assert handle.module_results() == []
    telemetry.check()


def _mixed(module: nn.Module, args: Any, kwargs: Any, output: Tensor, name: str) -> dict[str, Any]:
    return {
        "mean": output.mean(),
        "rows": output.shape[0],
        "first": output.reshape(-1)[:3],
        "positive": (output > 0).sum(),
        "word": "yes",
        "flag": True,
        "all": output.repeat(20, 20),
        "nothing": None,
    }


def test_results_become_attributes_and_a_list(telemetry: Telemetry) -> None:
    """Tensors as numbers: small ones one by one, large ones as statistics; against float64."""
    model = _Net()
    handle = telemetry.instrument(model, modules="all")
    function = handle.on_module(_Scaled, _mixed)
    with torch.no_grad():
        output = model(HIDDEN).double()
    (result,) = handle.module_results()
    assert (result.module, result.step, result.when) == ("second", None, "after")
    values = result.values
    assert values["mean"] == pytest.approx(output.mean().item(), rel=1e-6)
    assert values["first"] == pytest.approx(output.view(-1)[:3].tolist())
    assert values["positive"] == int((output > 0).sum())
    assert type(values["positive"]) is int
    assert (values["rows"], values["word"], values["flag"]) == (2, "yes", True)
    assert values["all.std"] == pytest.approx(output.std(correction=0).item(), rel=1e-5)
    assert values["all.element_count"] == output.numel() * 400
    assert "nothing" not in values
    spans = {(span.attributes or {})[semconv.MODULE_NAME]: dict(span.attributes or {}) for span in telemetry.modules()}
    found = {key.removeprefix(semconv.MODULE_RESULT + "."): value for key, value in spans["second"].items() if semconv.MODULE_RESULT in key}
    assert {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()} == values
    assert not any(semconv.MODULE_RESULT in key for key in spans["first"])
    assert function.modules == ("second",)
    telemetry.check()


def test_every_step_has_its_result(telemetry: Telemetry) -> None:
    """In order, also of steps whose modules have no spans; only recorded calls have attributes."""
    model = models.llama()
    handle = telemetry.instrument(model)
    handle.on_module("model.layers.*.mlp", lambda module, args, kwargs, output, name: {"peak": output.abs().amax()}, when="after")
    handle.on_module("model.layers.1.mlp", lambda module, args, kwargs, output, name: {"width": args[0].shape[-1]}, when="before")
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9)
    results = handle.module_results()
    assert [result.step for result in results if "width" in result.values] == list(range(9))
    assert len([result for result in results if "peak" in result.values]) == 18
    times = [result.time_ns for result in results]
    assert times == sorted(times)
    spans = [dict(span.attributes or {}) for span in telemetry.modules()]
    mlps = [span for span in spans if str(span[semconv.MODULE_NAME]).endswith("mlp")]
    assert len(mlps) == 10
    for span in mlps:
        same = [one for one in results if (one.module, one.step) == (span[semconv.MODULE_NAME], span[semconv.STEP_INDEX])]
        for one in same:
            for key, value in one.values.items():
                assert span[f"{semconv.MODULE_RESULT}.{key}"] == value
    telemetry.check()


def test_errors_are_contained_named_once_and_counted(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """The model returns what it returns without; the other function runs on."""
    model = _Net()
    plain = model(HIDDEN)
    handle = telemetry.instrument(model)

    def bad(*_: Any) -> None:
        raise ValueError("secret")

    def wrong(module: nn.Module, args: Any, kwargs: Any, output: Tensor, name: str) -> Tensor:
        return output * 0

    functions = [handle.on_module("first", bad, when="before"), handle.on_module("first", wrong), handle.on_module("first", _mixed)]
    before = guard.error_counts().get("function of on_module", 0)
    with caplog.at_level(logging.WARNING, logger="inferspan"):
        for _ in range(3):
            assert torch.equal(model(HIDDEN), plain)
    assert [function.errors for function in functions] == [3, 3, 0]
    assert [function.calls for function in functions] == [3, 3, 3]
    assert all(function.seconds > 0 for function in functions)
    assert guard.error_counts()["function of on_module"] == before + 6
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "bad raised ValueError before at first" in lines[0]
    assert "wrong returned Tensor instead of a dict or None after at first" in lines[1]
    assert "secret" not in "".join(lines)
    assert len(handle.module_results()) == 3
    telemetry.check(complaints=True)


def test_a_function_may_call_modules(telemetry: Telemetry) -> None:
    """They are not observed, so there is no recursion, and no span of them."""
    model = _Net()
    handle = telemetry.instrument(model, modules="all")
    function = handle.on_module(
        "first", lambda module, args, kwargs, output, name: {"again": (module(args[0]) - output).abs().max()}
    )
    model(HIDDEN)
    assert function.calls == 1
    assert handle.module_results()[0].values == {"again": 0.0}
    assert len(telemetry.modules()) == 2
    telemetry.check()


def test_remove_takes_everything_off(telemetry: Telemetry) -> None:
    """The function runs no more, nothing is on the model between requests, and results stay."""
    model = _Net()
    handle = telemetry.instrument(model)
    function = handle.on_module("first", _mixed)
    model(HIDDEN)
    assert attached(model)["hooks"] == 0
    function.remove()
    function.remove()
    model(HIDDEN)
    assert function.calls == 1
    assert len(handle.module_results()) == 1


def test_a_handle_takes_its_functions_along(telemetry: Telemetry) -> None:
    """Those of another handle of the model stay."""
    model = _Net()
    first, second = telemetry.instrument(model), inferspan.instrument(model)
    gone, stays = second.on_module("first", _mixed), first.on_module("first", _mixed)
    second.uninstrument()
    model(HIDDEN)
    assert (gone.calls, stays.calls) == (0, 1)


def test_a_pattern_without_a_match_warns(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """And the model runs."""
    model = _Net()
    handle = telemetry.instrument(model)
    with caplog.at_level(logging.WARNING, logger="inferspan"):
        function = handle.on_module("layers.*", _mixed)
    model(HIDDEN)
    assert function.modules == ()
    assert "no module that can be observed matches" in caplog.records[0].getMessage()
    telemetry.check(complaints=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("first", 3), "fn of on_module"), (("first", print, "during"), "when of on_module"), (("", print), "pattern of on_module"), ((4, print), "pattern of on_module")],
)
def test_wrong_arguments_raise(telemetry: Telemetry, arguments: tuple[Any, ...], message: str) -> None:
    """Before anything is registered."""
    handle = telemetry.instrument(_Net())
    with pytest.raises(SettingsError, match=message):
        handle.on_module(*arguments)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.*nested tensors")
def test_odd_results_are_described(telemetry: Telemetry) -> None:
    """Tensors without values of their own, objects and too many keys break nothing."""
    plain = torch.ones(2, 2)
    odd = {
        "meta": plain.to("meta"), "sparse": plain.to_sparse(), "quantized": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        "nested": torch.nested.nested_tensor([plain, plain], layout=torch.jagged), "nan": float("nan"), "empty": torch.ones(0),
        "object": object(), "mixed": [1, 2.5], **{f"key {index}": index for index in range(30)},
    }  # fmt: skip
    model = _Net()
    handle = telemetry.instrument(model, modules="all")
    handle.on_module("first", lambda *_: odd)
    model(HIDDEN)
    values = handle.module_results()[0].values
    assert values["meta"] == "Tensor of float32"
    assert values["mixed"] == [1.0, 2.5]
    assert "key 29" not in values
    telemetry.check()


def test_the_model_does_what_it_does_without(telemetry: Telemetry) -> None:
    """Equal tokens and random stream with functions before and after every module."""
    model = models.llama()
    torch.manual_seed(3)
    with torch.no_grad():
        plain = model.generate(models.prompt(), do_sample=True, max_new_tokens=8, min_new_tokens=8)
    after = torch.get_rng_state()
    handle = telemetry.instrument(model)
    for when in ("before", "after"):
        handle.on_module("*", lambda module, args, kwargs, output, name: {"name": name}, when=when)
    torch.manual_seed(3)
    with torch.no_grad():
        watched = model.generate(models.prompt(), do_sample=True, max_new_tokens=8, min_new_tokens=8)
    assert torch.equal(plain, watched)
    assert torch.equal(after, torch.get_rng_state())
    telemetry.check()


class _Silent:
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_what_cannot_be_sent_is_a_text(telemetry: Telemetry) -> None:
    """Numbers that no attribute can hold are there as texts; what the program reads is as it was."""
    model = _Net()
    handle = telemetry.instrument(model, modules="all")
    values = {"nan": float("nan"), "big": 2**63, "list": [1.0, float("inf")], "numpy": np.float32(1.5), "silent": _Silent()}
    handle.on_module("first", lambda *given: values)
    model(HIDDEN)
    (span,) = [span for span in telemetry.spans() if (span.attributes or {}).get(f"{semconv.MODULE_RESULT}.nan")]
    found = {key.rpartition(".")[2]: value for key, value in (span.attributes or {}).items() if key.startswith(semconv.MODULE_RESULT)}
    assert found == {
        "nan": "nan", "big": str(2**63), "list": ("1.0", "inf"), "numpy": 1.5, "silent": "_Silent, whose text raises RuntimeError",
    }  # fmt: skip
    (result,) = handle.module_results()
    assert result.values["big"] == 2**63 and result.values["nan"] != result.values["nan"]
    telemetry.check()


def test_large_tensors_of_integers(telemetry: Telemetry) -> None:
    """They have the figures of others."""
    model = _Net()
    handle = telemetry.instrument(model)
    handle.on_module("first", lambda *given: {"t": torch.arange(20)})
    model(HIDDEN)
    (result,) = handle.module_results()
    assert (result.values["t.mean"], result.values["t.max"]) == (9.5, 19.0)


def test_a_function_that_calls_the_model(telemetry: Telemetry) -> None:
    """That call is no request, and runs no function."""
    model = _Net()
    handle = telemetry.instrument(model)
    hook = handle.on_module("*", lambda *given: {"sum": model(HIDDEN).sum()})
    output = model(HIDDEN)
    assert hook.calls == 2 and [result.values["sum"] for result in handle.module_results()] == [output.sum().item()] * 2
    assert len(telemetry.forwards()) == 1
    telemetry.check()


def _returned(telemetry: Telemetry, result: Any, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """The values of a result as the program reads them, or ``None``, and those on the span of the call."""
    model = _Net()
    handle = telemetry.instrument(model, modules="all", **settings)
    handle.on_module("first", lambda *given: result)
    model(HIDDEN)
    (span,) = [one for one in telemetry.modules() if (one.attributes or {})[semconv.MODULE_NAME] == "first"]
    found = {key.rpartition(".")[2]: value for key, value in (span.attributes or {}).items() if key.startswith(semconv.MODULE_RESULT)}
    results = handle.module_results()
    return results[0].values if results else None, found


WHOLE = {
    "over 2^53": (torch.tensor(2**53 + 1), 2**53 + 1, 2**53 + 1),
    "limits": (torch.tensor([2**63 - 1, -(2**63)]), [2**63 - 1, -(2**63)], (2**63 - 1, -(2**63))),
    "unsigned": (torch.tensor(2**64 - 1, dtype=torch.uint64), 2**64 - 1, str(2**64 - 1)),
    "byte": (torch.tensor([255, 0], dtype=torch.uint8), [255, 0], (255, 0)),
    "boolean": (torch.tensor(True), True, True),
    "booleans": (torch.tensor([True, False]), [True, False], (True, False)),
    "boolean of NumPy": (np.bool_(True), True, True),
}


@pytest.mark.parametrize(("tensor", "read", "sent"), WHOLE.values(), ids=WHOLE)
def test_integers_are_exact(telemetry: Telemetry, tensor: Any, read: Any, sent: Any) -> None:
    """What the program reads has the values of the tensor; the span has them too, or a text where no attribute can hold them."""
    values, attributes = _returned(telemetry, {"x": tensor})
    assert (values, attributes) == ({"x": read}, {"x": sent})


@pytest.mark.parametrize("tensor", [torch.tensor(True), torch.tensor([True, False]), np.bool_(True)], ids=["one", "two", "NumPy"])
def test_booleans_are_booleans(telemetry: Telemetry, tensor: Any) -> None:
    """Not numbers that equal them."""
    values, _ = _returned(telemetry, {"x": tensor})
    assert {type(one) for one in (values["x"] if isinstance(values["x"], list) else [values["x"]])} == {bool}


HUGE = {
    "integer": (10**5000, "integer of 16,610 bits"),
    "list": ([1, 10**400, 2.0], ("1", str(10**400)[:256], "2.0")),
    "fraction": (Fraction(10**400), str(10**400)[:256]),
    "exact in no float": ([2**53 + 1, 0.5], (str(2**53 + 1), "0.5")),
}


@pytest.mark.parametrize(("value", "text"), HUGE.values(), ids=HUGE)
def test_numbers_that_no_attribute_holds_are_texts(telemetry: Telemetry, value: Any, text: Any) -> None:
    """Of integers without decimal digits, their size."""
    assert _returned(telemetry, {"x": value})[1] == {"x": text}
    telemetry.check()


@pytest.mark.parametrize("value", [10**5000, [1, 10**400, 2.0], Fraction(10**400), _Silent()], ids=["integer", "list", "fraction", "silent"])
def test_odd_values_leave_other_results_alone(telemetry: Telemetry, value: Any) -> None:
    """Those of the same call."""
    assert _returned(telemetry, {"x": value, "y": 1})[1]["y"] == 1


def test_odd_values_leave_figures_alone(telemetry: Telemetry) -> None:
    """Those of all modules of the request."""
    _returned(telemetry, {"x": 10**5000}, output_stats=True)
    assert all(semconv.OUTPUT_STAT_MEAN in (span.attributes or {}) for span in telemetry.modules())


class _Broken(Mapping[str, Any]):
    """Cannot be read."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Any:
        raise ZeroDivisionError("secret")

    def __len__(self) -> int:
        raise ZeroDivisionError("secret")


@pytest.mark.parametrize(("result", "error"), [(_Broken(), "ZeroDivisionError"), ({_Silent(): 1}, "RuntimeError")], ids=["mapping", "key"])
def test_a_result_that_cannot_be_read(telemetry: Telemetry, caplog: pytest.LogCaptureFixture, result: Any, error: str) -> None:
    """It is lost alone, counted and named."""
    model = _Net()
    handle = telemetry.instrument(model)
    broken = handle.on_module("first", lambda *given: result)
    handle.on_module("first", lambda *given: {"y": 1})
    with caplog.at_level(logging.WARNING, logger="inferspan"):
        model(HIDDEN)
    assert broken.errors == 1
    assert [one.values for one in handle.module_results()] == [{"y": 1}]
    assert [f"returned a mapping that raises {error} after at first" in record.getMessage() for record in caplog.records] == [True]
    telemetry.check(complaints=True)
