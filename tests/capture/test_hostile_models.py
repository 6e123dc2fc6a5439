"""Models, configurations and tokenizers of the program whose attributes raise: it notices nothing, and its requests are recorded.

A property may raise anything. Most of the objects here raise to code of inferspan alone, in each attribute that it asks for, because
torch and transformers need some of them as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opentelemetry import trace
from torch import Tensor, nn

import inferspan
from inferspan import guard
from tests.cases import models
from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("one_thread")

OURS = str(Path(inferspan.__file__).parent)
OF_TORCH = ({*dir(nn.Module), *vars(nn.Module())} | {"num_embeddings", "weight"}) - {"__class__"}
"""What every module has, and the tables of which torch's own methods use."""
HIDDEN = torch.ones(2, 4)


class Unreadable(AttributeError):
    """An error of a lazy attribute, of a kind that ``getattr`` takes for a missing one."""


class Odd(Exception):
    """An error of the program's."""


ERRORS = [RuntimeError, KeyError, Unreadable, Odd]


def hostile(thing: Any, error: type[Exception], spared: frozenset[str] | set[str] = frozenset()) -> Any:
    """Make each attribute of an object raise when code of inferspan reads it."""
    kind: Any = type(thing)

    def read(self: Any, name: str) -> Any:
        special = name.startswith("__") and name != "__class__"
        if not special and name not in spared and sys._getframe(1).f_code.co_filename.startswith(OURS):
            raise error(name)
        return kind.__getattribute__(self, name)

    thing.__class__ = type(kind.__name__, (kind,), {"__getattribute__": read, "__module__": kind.__module__})
    return thing


def hostile_model(build: Callable[[], Any], error: type[Exception]) -> Any:
    """A model of transformers whose modules and configurations are hostile."""
    model = build()
    for module in model.modules():
        hostile(module, error, OF_TORCH)
    hostile(model.config, error)
    hostile(model.generation_config, error)
    return model


class Tokenizer:
    """Has no attribute that can be read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return dict  # a lie
        raise RuntimeError(name)


class Plain(nn.Module):
    """With properties that raise for everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @property
    def config(self) -> Any:
        raise RuntimeError("no configuration on this rank")

    name_or_path = dtype = device = main_input_name = generation_config = property(lambda self: _raise(RuntimeError("not loaded yet")))

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.relu(self.linear(hidden))


class Refusing(Plain):
    """With a ``__getattr__`` that raises another error than the one that Python expects."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise KeyError(name) from None


class Lying(Plain):
    """Says that it is of another class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return nn.Sequential


class Classless(Plain):
    """Does not say of which class it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Halves(Plain):
    """Has a configuration that raises in some attributes, and lies in others."""

    @property
    def config(self) -> Any:
        return _Halves(vision_config=object(), eos_token_id=[], pad_token_id="none", _name_or_path=3, model_type=[], is_encoder_decoder=True)


class _Halves(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        raise Odd(name)


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize("kind", [Plain, Refusing, Lying, Classless, Halves])
def test_a_forward_pass_of_a_module_whose_properties_raise(telemetry: Telemetry, kind: type[nn.Module]) -> None:
    """The output is the same, and there is one request."""
    model = kind()
    want = model(HIDDEN)
    telemetry.instrument(model, modules="all")
    assert torch.equal(model(HIDDEN), want)
    telemetry.check()
    assert len(telemetry.forwards()) == 1


@pytest.mark.parametrize("kind", [Plain, Refusing, Lying, Classless, Halves])
def test_the_exception_of_such_a_module_is_the_same(telemetry: Telemetry, kind: type[nn.Module]) -> None:
    """A call with arguments that do not fit fails as without us, and is one failed request."""
    model = kind()
    with pytest.raises(RuntimeError) as want:
        model(torch.ones(2, 5))
    telemetry.instrument(model)
    with pytest.raises(RuntimeError) as got:
        model(torch.ones(2, 5))
    assert str(got.value) == str(want.value)
    telemetry.check()
    assert len(telemetry.forwards()) == 1


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("build", [models.llama, models.t5, models.llava], ids=["decoder", "encoder-decoder", "vision"])
def test_generate_of_a_model_whose_attributes_raise(
    telemetry: Telemetry, contained: list[guard.Swallowed], build: Callable[[], Any], error: type[Exception]
) -> None:
    """The tokens are the same, and there is one request, with its tokens and steps."""
    model, options = hostile_model(build, error), {"do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4}
    want = model.generate(models.prompt(2, 6), **options)
    handle = telemetry.instrument(model, modules="all", output_stats=True, attention="all", numerics="all", roofline="all")
    got = model.generate(models.prompt(2, 6), **options)
    assert torch.equal(got, want)
    assert len(telemetry.requests()) == 1
    assert len(telemetry.steps()) == 4
    assert f"{type(model).__name__}" in repr(handle)
    # The numbers of a convolution are torch's own, and the roofline needs all of them.
    assert {one.place for one in contained} <= {"roofline"}
    contained.clear()
    telemetry.check(complaints=True)


@pytest.mark.parametrize("error", ERRORS)
def test_a_forward_pass_of_a_model_whose_attributes_raise(telemetry: Telemetry, error: type[Exception]) -> None:
    """The logits are the same, and there is one request."""
    model = hostile_model(models.llama, error)
    want = model(models.prompt(2, 6)).logits
    telemetry.instrument(model)
    assert torch.equal(model(models.prompt(2, 6)).logits, want)
    telemetry.check()
    assert len(telemetry.forwards()) == 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_generation_by_hand_with_a_model_whose_attributes_raise(telemetry: Telemetry, error: type[Exception]) -> None:
    """There is one request with all steps."""
    model = hostile_model(models.llama, error)
    telemetry.instrument(model)
    ids = models.prompt(1, 4)
    with torch.no_grad(), inferspan.generation(model, input_tokens=ids) as generation:
        for _ in range(3):
            with generation.step(ids):
                logits = model(ids).logits[:, -1]
            token = logits.argmax(-1, keepdim=True)
            generation.token(logits, token)
            ids = torch.cat([ids, token], 1)
    telemetry.check()
    assert len(telemetry.requests()) == 1
    assert len(telemetry.steps()) == 3


def test_a_tokenizer_whose_attributes_raise(telemetry: Telemetry, contained: list[guard.Swallowed]) -> None:
    """Only the texts are missing."""
    model = models.llama()
    want = model.generate(models.prompt(2, 6), do_sample=False, max_new_tokens=4)
    telemetry.instrument(model, Tokenizer(), capture_content="SPAN_ONLY")
    assert torch.equal(model.generate(models.prompt(2, 6), do_sample=False, max_new_tokens=4), want)
    assert len(telemetry.requests()) == 1
    assert {one.place for one in contained} == {"content", "token texts"}
    contained.clear()
    telemetry.check(complaints=True)


def test_a_pipeline_whose_tokenizer_and_task_raise(telemetry: Telemetry) -> None:
    """The model in it is observed."""

    class Pipeline:
        def __init__(self) -> None:
            self.model = Plain()

        tokenizer = task = property(lambda self: _raise(Odd("no tokenizer")))

    pipeline = Pipeline()
    telemetry.instrument(pipeline)
    pipeline.model(HIDDEN)
    telemetry.check()
    assert len(telemetry.forwards()) == 1


def test_an_interrupt_in_a_property_passes(telemetry: Telemetry) -> None:
    """Ctrl-C while a property runs ends instrument(), and nothing stays on the model."""

    class Slow(Plain):
        @property
        def config(self) -> Any:
            raise KeyboardInterrupt

    model = Slow()
    with pytest.raises(KeyboardInterrupt):
        telemetry.instrument(model)
    assert "_compiled_call_impl" not in vars(model)
    assert trace.get_current_span() is trace.INVALID_SPAN
    model(HIDDEN)
    assert telemetry.forwards() == []
