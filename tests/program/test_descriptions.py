"""Decorators that describe calls: events after them, denoising steps, blocks and facts of models."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry

MEASURED: dict[str, Any] = {"modules": "none", "host": True, "allocator": True}
"""Settings with which memory is read."""


def _facts(telemetry: Telemetry, name: str) -> dict[str, Any]:
    """Attributes of the one span of a name, without those that every stage has."""
    common = {semconv.STAGE_KIND, semconv.STAGE_NAME, semconv.STAGE_SELF_TIME, semconv.MEMORY_DELTA}
    found = telemetry.only(telemetry.spans(name))
    return {key: value for key, value in found.items() if key not in common and not key.startswith("inferspan.session.")}


def _event(telemetry: Telemetry, name: str) -> dict[str, Any]:
    (event,) = [event for span in telemetry.spans() for event in span.events if event.name == name]
    return {key: value for key, value in (event.attributes or {}).items() if not key.startswith("inferspan.session.")}


# ------------------------------------------------------------------------------------------------------- event_on_return
class Loader:
    """Loads checkpoints."""

    @inferspan.event_on_return("checkpoint_loaded", lambda result, **arguments: {"size": len(result), **arguments})
    def load(self, path: str, strict: bool = True, *parts: int, prefix: str = "", **more: Any) -> str:
        """Load one."""
        return path * 2


def test_arguments_by_name(telemetry: Telemetry, model: Any) -> None:
    """The function gets the result and all arguments by name: positional ones, defaults and named ones, without the object."""
    with inferspan.stage("part"):
        Loader().load("ab", False, 1, 2, extra=3)
    assert _event(telemetry, "checkpoint_loaded") == {"size": 4, "path": "ab", "strict": False, "parts": (1, 2), "prefix": "", "extra": 3}


def test_a_class_method(telemetry: Telemetry, model: Any) -> None:
    """The class of a class method is left out as well; the function gets only arguments that it has parameters for."""

    class Owner:
        @inferspan.event_on_return("done", lambda result, path: {"result": result, "path": path})
        @classmethod
        def load(cls, path: str, other: int = 3) -> str:
            return f"{cls.__name__} {path}"

    with inferspan.stage("part"):
        Owner.load("x")
    assert _event(telemetry, "done") == {"result": "Owner x", "path": "x"}


def test_an_argument_of_the_name_of_the_result(telemetry: Telemetry, model: Any) -> None:
    """An argument that is called as the function calls the result gives way to the result."""
    with inferspan.stage("part"):
        inferspan.event_on_return("done", lambda result, **_: {"got": result})(lambda result: result + 1)(1)
    assert _event(telemetry, "done") == {"got": 2}


def test_without_a_function(telemetry: Telemetry, model: Any) -> None:
    """Without a function the event has no attributes."""
    with inferspan.stage("part"):
        inferspan.event_on_return("done")(lambda value: value)(1)
    assert _event(telemetry, "done") == {}


@pytest.mark.parametrize("fn", [lambda result: 1 / 0, lambda result: 5, lambda: {}], ids=["raises", "no mapping", "takes nothing"])
def test_a_function_that_fails(fn: Any, telemetry: Telemetry, model: Any, contained: list[Any]) -> None:
    """The event comes without attributes where the function fails, which is contained."""
    with inferspan.stage("part"):
        assert inferspan.event_on_return("done", fn)(lambda: 1)() == 1
    assert [error.place for error in contained] == ["attributes of an event"]
    contained.clear()
    assert _event(telemetry, "done") == {}


def test_no_event_after_an_exception(telemetry: Telemetry, model: Any) -> None:
    """A call that raises has no event, and the function is not called."""
    called: list[Any] = []

    @inferspan.event_on_return("done", lambda result: called.append(result))
    def fails() -> None:
        raise LookupError

    with inferspan.stage("part"), pytest.raises(LookupError):
        fails()
    assert called == []
    assert not [event for span in telemetry.spans() for event in span.events if event.name == "done"]


def test_an_interrupt_passes(telemetry: Telemetry, model: Any) -> None:
    """Ctrl-C in a function of the user's that describes a call is no error of ours: it passes."""

    def interrupted(result: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), inferspan.stage("outer"):
        inferspan.event_on_return("done", interrupted)(inferspan.stage("inner")(lambda: 1))()
    assert [(span.attributes or {})[semconv.ERROR_TYPE] for span in telemetry.spans()] == ["KeyboardInterrupt"] * 2
    telemetry.check()


def test_an_interrupt_at_the_end_of_a_generator(telemetry: Telemetry, model: Any) -> None:
    """So does one at the end of a generator, and nothing stays current in its reader."""

    def interrupted(result: Any) -> Any:
        raise KeyboardInterrupt

    @inferspan.event_on_return("done", interrupted)
    @inferspan.stage("inner")
    def numbers() -> Any:
        yield 1

    with inferspan.stage("outer"):
        with pytest.raises(KeyboardInterrupt):
            list(numbers())
        inferspan.event("after")
    assert [event.name for event in telemetry.spans("outer")[0].events] == ["after"]
    telemetry.check()


# ------------------------------------------------------------------------------------------------------- denoising steps
def test_a_denoising_step_by_its_arguments(telemetry: Telemetry, model: Any) -> None:
    """Without a function, arguments of the known names count; the index is an attribute and not in the name."""

    @inferspan.diffusion_step()
    def denoise(latents: Any, step: int, timestep: Any, block_size: int = 4) -> Any:
        return latents

    denoise(torch.zeros(1), 2, timestep=torch.tensor(750))
    assert _facts(telemetry, "denoise_step") == {semconv.DENOISE_INDEX: 2, semconv.DENOISE_TIMESTEP: 750.0, semconv.BLOCK_SIZE: 4}


def test_a_denoising_step_by_a_function(telemetry: Telemetry, model: Any) -> None:
    """A function gets the arguments without the object; other values keep their names."""

    class Sampler:
        @inferspan.diffusion_step(lambda args, kwargs: {"step": args[0], "timestep": kwargs["t"], "app.guidance": 7.5})
        def denoise(self, index: int, *, t: float) -> None:
            assert isinstance(self, Sampler)

    Sampler().denoise(3, t=10)
    assert _facts(telemetry, "denoise_step") == {semconv.DENOISE_INDEX: 3, semconv.DENOISE_TIMESTEP: 10.0, "app.guidance": 7.5}


def test_a_denoising_step_by_its_result(telemetry: Telemetry, model: Any) -> None:
    """A function whose first parameter is called ``result`` is called after the call."""
    inferspan.diffusion_step(lambda result, i: {"step": i, "timestep": result})(lambda i: 5.0)(1)
    assert _facts(telemetry, "denoise_step") == {semconv.DENOISE_INDEX: 1, semconv.DENOISE_TIMESTEP: 5.0}


def test_numbers_that_are_not_known(telemetry: Telemetry, model: Any) -> None:
    """What is no number, or lies on a device where reading it would wait, is left out."""
    describe = lambda args, kwargs: {"step": "first", "timestep": torch.zeros(1, device="meta"), "block_size": None}  # noqa: E731
    inferspan.diffusion_step(describe)(lambda: None)()
    assert _facts(telemetry, "denoise_step") == {}


def test_a_step_that_fails(telemetry: Telemetry, model: Any) -> None:
    """A step that raises has its number."""

    @inferspan.diffusion_step()
    def denoise(step: int) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        denoise(4)
    facts = _facts(telemetry, "denoise_step")
    assert facts[semconv.DENOISE_INDEX] == 4
    assert facts[semconv.ERROR_TYPE] == "LookupError"


# ---------------------------------------------------------------------------------------------------------------- blocks
def test_a_block_is_measured(telemetry: Telemetry) -> None:
    """Time and memory of a block are measured where the program does not give them."""
    telemetry.instrument(torch.nn.Linear(2, 2), **MEASURED)

    @inferspan.block_computation()
    def compute(block_index: int, block_size: int) -> None:
        time.sleep(0.02)

    compute(3, block_size=16)
    facts = _facts(telemetry, "block_computation")
    assert {key: facts.pop(key) for key in (semconv.BLOCK_INDEX, semconv.BLOCK_SIZE)} == {semconv.BLOCK_INDEX: 3, semconv.BLOCK_SIZE: 16}
    (span,) = telemetry.spans("block_computation")
    assert 0.02 <= facts.pop(semconv.BLOCK_TIME) <= ((span.end_time or 0) - (span.start_time or 0)) / 1e9
    assert facts.pop(semconv.BLOCK_MEMORY) > 1 << 20
    assert facts == {}


def test_a_block_that_tells(telemetry: Telemetry) -> None:
    """Time and memory that the program gives stand apart, in seconds and bytes, and nothing is measured in their place."""
    telemetry.instrument(torch.nn.Linear(2, 2), **MEASURED)
    describe = lambda args, kwargs: {"block_index": args[0], "computation_time_ms": 12.5, "memory_usage_mb": 2}  # noqa: E731
    inferspan.block_computation(describe)(lambda index: None)(1)
    assert _facts(telemetry, "block_computation") == {
        semconv.BLOCK_INDEX: 1, semconv.BLOCK_TIME_GIVEN: 0.0125, semconv.BLOCK_MEMORY_GIVEN: 2 << 20,
    }  # fmt: skip


def test_a_block_tells_after_the_call(telemetry: Telemetry, model: Any) -> None:
    """The function is called when the call has ended, so that it knows what the program has measured; also where it raised."""
    measured: dict[str, Any] = {}

    @inferspan.block_computation(lambda args, kwargs: dict(measured))
    def compute(fails: bool) -> None:
        measured["computation_time_ms"] = 1
        if fails:
            raise LookupError

    compute(False)
    with pytest.raises(LookupError):
        compute(True)
    assert [(span.attributes or {})[semconv.BLOCK_TIME_GIVEN] for span in telemetry.spans("block_computation")] == [0.001, 0.001]


def test_no_memory_where_nothing_reads_it(telemetry: Telemetry, model: Any) -> None:
    """Where the readings are switched off, memory is absent and not 0."""
    inferspan.block_computation()(lambda: None)()
    assert _facts(telemetry, "block_computation").keys() == {semconv.BLOCK_TIME}
    assert semconv.MEMORY_DELTA not in telemetry.only(telemetry.spans("block_computation"))


# ------------------------------------------------------------------------------------------------------ facts of a model
WANTED = {semconv.MODEL_NAME: "net", semconv.MODEL_PARAMETERS: 7, semconv.MODEL_TYPE: "t2v"}
FACTS = {"model_name": "net", "parameters_count": 7, "model_type": "t2v"}


def _open(telemetry: Telemetry) -> Any:
    return inferspan.session("job", tracer_provider=telemetry.tracer_provider)


def test_facts_on_the_session(telemetry: Telemetry) -> None:
    """Facts of a model stand on the session around the call, not on a stage in between."""

    @inferspan.stage("part")
    @inferspan.model_parameters(lambda args, kwargs: FACTS)
    def load() -> None:
        pass

    with _open(telemetry):
        load()
    assert _facts(telemetry, "session job") == WANTED
    assert _facts(telemetry, "part") == {}


def test_facts_of_the_result(telemetry: Telemetry) -> None:
    """They may come from what the call has returned."""
    with _open(telemetry):
        inferspan.model_parameters(lambda result, name: {"model_name": name, "parameters_count": result})(lambda name: 7)("net")
    assert _facts(telemetry, "session job") == {semconv.MODEL_NAME: "net", semconv.MODEL_PARAMETERS: 7}


def test_facts_by_arguments(telemetry: Telemetry) -> None:
    """Without a function, arguments of the known names count."""

    @inferspan.model_parameters()
    def load(model_name: str, parameters_count: int, model_type: str = "t2v", other: int = 1) -> None:
        pass

    with _open(telemetry):
        load("net", 7)
    assert _facts(telemetry, "session job") == WANTED


def test_facts_without_a_session(telemetry: Telemetry, model: Any) -> None:
    """Without a session they stand on the outermost stage."""
    with inferspan.stage("outer"), inferspan.stage("inner"):
        inferspan.model_parameters(lambda args, kwargs: FACTS)(lambda: None)()
    assert _facts(telemetry, "outer") == WANTED
    assert _facts(telemetry, "inner") == {}


@pytest.mark.parametrize("fn", [lambda args, kwargs: 1 / 0, lambda args, kwargs: 5], ids=["raises", "no mapping"])
def test_facts_that_fail(fn: Any, telemetry: Telemetry, contained: list[Any]) -> None:
    """A function that fails costs the facts and nothing else."""
    with _open(telemetry):
        assert inferspan.model_parameters(fn)(lambda: 1)() == 1
    assert [error.place for error in contained] == ["attributes of a call"]
    contained.clear()
    assert _facts(telemetry, "session job") == {}


# ------------------------------------------------------------------------------------------------------ memory and count
def test_memory_of_a_stage(telemetry: Telemetry) -> None:
    """A stage tells how many bytes more are in use at its end than at its start."""
    telemetry.instrument(torch.nn.Linear(2, 2), **MEASURED)
    with inferspan.stage("keep") as keep:
        kept = torch.ones(64 << 20)  # much more than other threads of the tests take or give back meanwhile
        time.sleep(0.006)  # longer than a reading counts
    with inferspan.stage("drop") as drop:
        del kept
        time.sleep(0.006)
    assert 192 << 20 < (keep.memory_delta or 0) < 320 << 20
    assert -(320 << 20) < (drop.memory_delta or 0) < -(192 << 20)
    assert telemetry.only(telemetry.spans("keep"))[semconv.MEMORY_DELTA] == keep.memory_delta


def test_metrics_of_stages(telemetry: Telemetry) -> None:
    """Stages of the program are counted by name, with their time and memory; sessions are not."""
    telemetry.instrument(torch.nn.Linear(2, 2), **MEASURED)
    deltas = []
    with inferspan.session("job"):
        for _ in range(3):
            with inferspan.stage("part") as stage:
                time.sleep(0.006)  # longer than a reading counts
            deltas.append(stage.memory_delta or 0)
    found = telemetry.metrics()
    assert found[semconv.M_PROGRAM_STAGE_DURATION] == [("[('inferspan.stage.name', 'part')]", 3)]
    assert found[semconv.M_PROGRAM_STAGE_MEMORY] == [("[('inferspan.stage.name', 'part')]", sum(deltas))]


def test_names_are_bounded(telemetry: Telemetry, model: Any) -> None:
    """Past 50 names, stages are counted together."""
    for number in range(60):
        with inferspan.stage(f"part {number}"):
            pass
    rows = telemetry.metrics()[semconv.M_PROGRAM_STAGE_DURATION]
    assert len(rows) == 51
    assert ("[('inferspan.stage.name', 'other')]", 10) in rows
