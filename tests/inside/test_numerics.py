"""The numerics watch: the first bad module and step, counts against float64, what is not looked at, and ``on_nonfinite``."""

from __future__ import annotations

import copy
import itertools
import logging
import pickle
import random
import sys
import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from inferspan.capture.inside import hooks
from inferspan.capture.inside.watch import WatchLog
from inferspan.settings import SettingsError
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True, params=["host", "device"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values in the memory of the host are counted there, or as those of a device."""
    if request.param == "device":
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        monkeypatch.setattr(hooks, "WatchLog", partial(WatchLog, reads_host=False))


class _Plant(nn.Module):
    """Passes its input on, with bad values in it at one of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.at = -1
        self.value = NAN
        self.amount = 0
        self.calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        if self.calls - 1 != self.at:
            return hidden
        spoilt = hidden.clone()
        spoilt.view(-1)[: self.amount] = self.value
        return spoilt


def _events(telemetry: Telemetry) -> list[dict[str, Any]]:
    found = []
    for span in telemetry.spans():
        for event in span.events:
            if event.name == semconv.NONFINITE_EVENT:
                assert span.start_time is not None
                assert span.end_time is not None
                assert span.start_time <= event.timestamp <= span.end_time
                found.append(dict(event.attributes or {}))
    return found


class _Chain(nn.Module):
    """Twelve plants in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.plants = nn.ModuleList([_Plant() for _ in range(12)])

    def forward(self, hidden: Tensor) -> Tensor:
        for plant in self.plants:
            hidden = plant(hidden)
        return hidden


@pytest.mark.parametrize("seed", range(50))
def test_a_bad_module_in_a_chain_is_found(telemetry: Telemetry, seed: int) -> None:
    """At a random module of a random call, with a random number of NaN or Inf: module, number of values, and those that follow from it."""
    chance = random.Random(seed)
    model, place, at = _Chain(), chance.randrange(12), chance.randrange(4)
    plant: Any = model.plants[place]
    plant.at, plant.value, plant.amount = at, chance.choice([NAN, INF, -INF]), chance.randint(1, 15)
    handle = telemetry.instrument(model, numerics="all", modules="none")
    for _ in range(4):
        model(torch.ones(3, 5))
    verdict = handle.numerics()
    assert verdict.first is not None
    assert verdict.first.module == f"plants.{place}"
    assert (verdict.first.nan, verdict.first.inf) == ((plant.amount, 0) if plant.value != plant.value else (0, plant.amount))
    assert [one.module for one in verdict.problematic_modules] == [f"plants.{index}" for index in range(place, 12)]
    assert verdict.nan_count + verdict.inf_count == 12 - place
    assert verdict.nan_values + verdict.inf_values == (12 - place) * plant.amount
    assert (verdict.calls, verdict.total_modules, verdict.elements) == (48, 12, 48 * 15)
    assert [event[semconv.MODULE_NAME] for event in _events(telemetry)] == [f"plants.{index}" for index in range(place, 12)]
    marked = [bool((span.attributes or {}).get(semconv.NONFINITE)) for span in telemetry.forwards()]
    assert marked == [index == at for index in range(4)]
    assert telemetry.metric_sum("inferspan.numerics.nonfinite") == (12 - place) * plant.amount
    telemetry.check()


def _spoil(module: Any, at: int, column: Any) -> None:
    """Put infinite values into what one call of a module returns."""
    forward, calls = module.forward, itertools.count()

    def spoilt(*args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = forward(*args, **kwargs)
        if next(calls) == at:
            output = output.clone()
            output[..., column] = INF
        return output

    module.forward = spoilt


@pytest.mark.parametrize("seed", range(50))
def test_a_bad_step_of_a_decoder_is_found(telemetry: Telemetry, seed: int) -> None:
    """A module of a decoder goes bad at a random step: module and step are exact, sampled or not."""
    chance = random.Random(seed)
    model, step = models.llama(), chance.randrange(9)
    layer, part = chance.randrange(2), chance.choice(["self_attn.q_proj", "mlp.down_proj", "mlp.up_proj", "input_layernorm"])
    name = f"model.layers.{layer}.{part}"
    _spoil(model.get_submodule(name), step, 3)
    handle = telemetry.instrument(model, numerics="all")
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9)
    verdict = handle.numerics()
    assert verdict.first is not None
    assert (verdict.first.module, verdict.first.step) == (name, step)
    assert verdict.first.inf == (6 if step == 0 else 1)
    assert _events(telemetry)[0][semconv.MODULE_NAME] == name
    assert _events(telemetry)[0][semconv.STEP_INDEX] == step
    telemetry.check()


def test_a_sound_model_is_said_to_be_sound(telemetry: Telemetry) -> None:
    """The verdict names calls and modules; nothing is marked, no event is sent."""
    model = models.llama()
    handle = telemetry.instrument(model, numerics="layers")
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=5, min_new_tokens=5)
    assert str(handle.numerics()) == "numerics: no NaN or Inf in 30 calls of 6 modules; not looked at: none"
    assert _events(telemetry) == []
    assert semconv.NONFINITE not in telemetry.only()
    telemetry.check()


def test_the_verdict_in_words(telemetry: Telemetry) -> None:
    """The first line has the first bad call; a line for each module follows."""
    model = _Chain()
    plant: Any = model.plants[10]
    plant.at, plant.amount = 0, 2
    handle = telemetry.instrument(model, numerics="all")
    model(torch.ones(3, 5))
    assert str(handle.numerics()).splitlines() == [
        "numerics: 2 of 12 modules returned NaN or Inf; first plants.10, call 10 (2 NaN and 0 Inf of 15 values)",
        "  2 calls with NaN, 0 with Inf, of 12 calls of 12 modules; not looked at: none",
        "  plants.10: 1 call, 2 NaN, 0 Inf",
        "  plants.11: 1 call, 2 NaN, 0 Inf",
    ]


class _Returns(nn.Module):
    """Returns what it is given."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, hidden: Tensor) -> Any:
        return self.result


class _Holds(nn.Module):
    """Calls one module and ignores its result."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, hidden: Tensor) -> Tensor:
        self.part(hidden)
        return hidden


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_counts_agree_with_float64(telemetry: Telemetry, dtype: torch.dtype) -> None:
    """NaN, Inf and values of at least half the largest finite value, over every tensor of an output."""
    limit = torch.finfo(dtype).max
    values = torch.tensor([0.0, NAN, INF, -INF, limit, -limit, limit / 2, -limit / 4, 1.0, NAN], dtype=dtype)
    wide = torch.randn(70, 33).to(dtype)
    model = _Holds(_Returns([values, {"more": wide}]))
    handle = telemetry.instrument(model, numerics="all")
    model(torch.ones(2))
    verdict = handle.numerics()
    exact = torch.cat([values.double(), wide.double().view(-1)])
    assert verdict.nan_values == int(exact.isnan().sum())
    assert verdict.inf_values == int(exact.isinf().sum())
    assert verdict.near_limit == int((exact.isfinite() & (exact.abs() >= limit / 2)).sum())
    assert verdict.elements == exact.numel()
    assert verdict.near_limit_share == pytest.approx(3 / exact.numel())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.*nested tensors")
def test_what_cannot_be_looked_at_is_named_and_counted(telemetry: Telemetry) -> None:
    """Tensors without values of their own, or that cannot hold NaN, are counted by reason and break nothing."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain = torch.ones(2, 2)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(plain)

    class Mine(Tensor):
        """A subclass that may mean anything."""

    odd = {
        "integer": plain.long(), "meta": plain.to("meta"), "sparse": plain.to_sparse(), "complex": plain.to(torch.complex64),
        "8-bit": plain.to(torch.float8_e5m2), "quantized": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8), "fake": fake,
        "nested": torch.nested.nested_tensor([plain, plain], layout=torch.jagged), "of a subclass": plain.as_subclass(Mine),
    }  # fmt: skip
    for reason, tensor in odd.items():
        model = _Holds(_Returns((tensor, plain)))
        handle = telemetry.instrument(model, numerics="all")
        model(torch.ones(2))
        assert handle.numerics().not_looked_at == {reason: 1}, reason
        assert handle.numerics().elements == 4
    telemetry.check()


def test_outputs_without_tensors_are_no_calls(telemetry: Telemetry) -> None:
    """Nothing is counted for them."""
    model = _Holds(_Returns({"text": "nothing", "none": None}))
    handle = telemetry.instrument(model, numerics="all")
    model(torch.ones(2))
    assert handle.numerics().calls == 0


# ---------------------------------------------------------------------------------------------------------------- on_nonfinite
def test_raise_names_module_shape_and_upstream(telemetry: Telemetry) -> None:
    """The error comes from the call of the model, at the first bad module; later modules do not run."""
    model = _Chain()
    plant: Any = model.plants[4]
    plant.at, plant.amount = 0, 3
    telemetry.instrument(model, numerics="all", on_nonfinite="raise")
    with pytest.raises(inferspan.NonfiniteError, match=r"output of plants\.4 \(3x5 float32\) has 3 NaN and 0 Inf; its inputs are finite") as caught:
        model(torch.ones(3, 5))
    error = caught.value
    assert (error.module, error.step, error.shape, error.dtype) == ("plants.4", None, (3, 5), "float32")
    assert model.plants[5].calls == 0
    assert telemetry.only(telemetry.forwards())[semconv.ERROR_TYPE] == "inferspan.NonfiniteError"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    plant.at = -1
    assert torch.equal(model(torch.ones(3, 5)), torch.ones(3, 5))
    telemetry.check()


def test_raise_says_that_the_inputs_were_bad(telemetry: Telemetry) -> None:
    """Where the module that made them is not looked at."""
    model = _Chain()
    plant: Any = model.plants[4]
    plant.at, plant.amount, plant.value = 0, 3, INF
    telemetry.instrument(model, numerics=["plants.7"], on_nonfinite="raise")
    with pytest.raises(inferspan.NonfiniteError, match="its inputs have 0 NaN and 3 Inf"):
        model(torch.ones(3, 5))


def test_raise_in_a_step(telemetry: Telemetry) -> None:
    """The step is that of the decoding loop; the request fails and the model works on."""
    model = models.llama()
    handle = telemetry.instrument(model, numerics=["lm_head"], on_nonfinite="raise")
    _spoil(model.lm_head, 3, slice(None))
    with torch.no_grad(), pytest.raises(inferspan.NonfiniteError) as caught:
        model.generate(models.prompt(), do_sample=False, max_new_tokens=6, min_new_tokens=6)
    assert caught.value.step == 3
    handle.set(on_nonfinite="record")
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=6, min_new_tokens=6)
    telemetry.check()


def test_warn_logs_one_line_for_a_request(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """With the number of modules and the first one; nothing is logged without NaN or Inf."""
    model = _Chain()
    plant: Any = model.plants[11]
    plant.at, plant.amount = 1, 3
    telemetry.instrument(model, numerics="all", on_nonfinite="warn")
    with caplog.at_level(logging.WARNING, logger="inferspan"):
        for _ in range(3):
            model(torch.ones(3, 5))
    assert [record.getMessage() for record in caplog.records] == [
        "NaN or Inf in the outputs of 1 modules, 1 calls of one request; first plants.11, call 11 (3 NaN and 0 Inf of 15 values)"
    ]


# ---------------------------------------------------------------------------------------------------------------- and nothing else
def test_the_model_does_what_it_does_without(telemetry: Telemetry) -> None:
    """Equal outputs and random stream; nothing stays on the model, and a copy has nothing of it."""
    model = models.llama()
    torch.manual_seed(3)
    with torch.no_grad():
        plain = model.generate(models.prompt(), do_sample=True, max_new_tokens=8, min_new_tokens=8)
    after = torch.get_rng_state()
    telemetry.instrument(model, numerics="all")
    torch.manual_seed(3)
    with torch.no_grad():
        watched = model.generate(models.prompt(), do_sample=True, max_new_tokens=8, min_new_tokens=8)
    assert torch.equal(plain, watched)
    assert torch.equal(after, torch.get_rng_state())
    assert attached(model)["hooks"] == 0
    assert attached(copy.deepcopy(model))["hooks"] == 0
    telemetry.check()


def test_requests_on_threads_do_not_mix(telemetry: Telemetry) -> None:
    """Each request has its own calls; only the bad one is marked."""
    model = _Chain()

    def run(bad: bool) -> None:
        for _ in range(10):
            hidden = torch.ones(3, 5)
            if bad:
                hidden[0, 0] = NAN
            model(hidden)

    handle = telemetry.instrument(model, numerics="all", modules="none")
    threads = [threading.Thread(target=run, args=(index == 2,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handle.numerics().nan_count == 120
    assert handle.numerics().calls == 480
    assert sum(bool((span.attributes or {}).get(semconv.NONFINITE)) for span in telemetry.forwards()) == 10
    assert attached(model)["hooks"] == 0


def test_recorded_calls_carry_the_counts(telemetry: Telemetry) -> None:
    """On the span of the bad module, whether or not statistics are recorded; the metric counts each value once."""
    for statistics in (False, True):
        model = _Chain()
        plant: Any = model.plants[11]
        plant.at, plant.amount = 0, 3
        telemetry.instrument(model, numerics="all", modules="all", output_stats=statistics)
        model(torch.ones(3, 5))
    spans = [dict(span.attributes or {}) for span in telemetry.modules()]
    bad = [span for span in spans if span.get(semconv.OUTPUT_STAT_NAN_COUNT)]
    assert [(span[semconv.MODULE_NAME], span[semconv.OUTPUT_STAT_NAN_COUNT]) for span in bad] == [("plants.11", 3)] * 2
    assert telemetry.metric_sum("inferspan.numerics.nonfinite") == 6
    telemetry.check()


def test_calls_in_compiled_code_are_counted_as_not_looked_at(telemetry: Telemetry) -> None:
    """A compiled pass has no hooks of ours in it, and the verdict says so."""
    torch.compiler.reset()
    model = _Chain()
    handle = telemetry.instrument(model, numerics="all")
    model(torch.ones(3, 5))
    model.compile(backend="eager")
    model(torch.ones(3, 5))
    assert str(handle.numerics()) == "numerics: no NaN or Inf in 12 calls of 12 modules; not looked at: 12 in compiled code"


def test_it_switches_at_run_time(telemetry: Telemetry) -> None:
    """On, and off again with nothing left on the model; a pattern that matches nothing raises."""
    model = models.llama()
    handle = telemetry.instrument(model)
    with torch.no_grad():
        model(models.prompt())
        assert handle.numerics().calls == 0
        handle.set(numerics=["lm_head"])
        model(models.prompt())
        assert handle.numerics().calls == 1
        handle.set(numerics="none")
        model(models.prompt())
        assert handle.numerics().calls == 1
    with pytest.raises(SettingsError, match=r"'numerics': pattern 'nothing\..*' matches no module"):
        handle.set(numerics=["nothing.*"])
    with pytest.raises(SettingsError, match=r"'numerics': pattern 'nothing\..*' matches no module"):
        telemetry.instrument(_Chain(), numerics=["nothing.*"])
