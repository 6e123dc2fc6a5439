"""What a request says of the model is what the model was at that call, whatever changed since ``instrument()``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry


def _generate(model: Any, **options: Any) -> None:
    ids = models.prompt()
    model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False, **options)


def _said(telemetry: Telemetry, key: str) -> list[Any]:
    return [(span.attributes or {}).get(key) for span in telemetry.requests()]


def test_dtype_of_the_call(telemetry: Telemetry) -> None:
    """``.to(dtype)`` between two calls."""
    model = models.llama()
    telemetry.instrument(model)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        _generate(model.to(dtype))
    assert _said(telemetry, semconv.MODEL_DTYPE) == ["float32", "bfloat16", "float64"]


def test_dtype_of_a_model_whose_parameters_are_replaced(telemetry: Telemetry) -> None:
    """``load_state_dict(assign=True)`` brings other parameter objects."""
    model = nn.Sequential(nn.Linear(2, 2))
    telemetry.instrument(model)
    model.load_state_dict({key: value.double() for key, value in model.state_dict().items()}, assign=True)
    model(torch.ones(1, 2, dtype=torch.float64))
    assert telemetry.only(telemetry.forwards())[semconv.MODEL_DTYPE] == "float64"


def test_attention_implementation_of_the_call(telemetry: Telemetry) -> None:
    """``set_attn_implementation()`` between two calls."""
    model = models.llama()
    telemetry.instrument(model)
    for name in ("sdpa", "eager", "sdpa"):
        model.set_attn_implementation(name)
        _generate(model)
    assert _said(telemetry, semconv.MODEL_ATTENTION) == ["sdpa", "eager", "sdpa"]


def test_device_of_the_call(telemetry: Telemetry) -> None:
    """A model that moves says where it is, its steps included."""
    model = nn.Sequential(nn.Linear(2, 2))
    telemetry.instrument(model)
    model(torch.ones(1, 2))
    model.to("meta")
    model(torch.ones(1, 2, device="meta"))
    assert [(span.attributes or {}).get(semconv.DEVICE) for span in telemetry.forwards()] == ["cpu", "meta"]


def test_size_after_the_vocabulary_has_grown(telemetry: Telemetry) -> None:
    """The parameters are counted again when there are more of them."""
    model = models.llama()
    telemetry.instrument(model)
    _generate(model)
    before = sum(parameter.numel() for parameter in model.parameters())
    model.resize_token_embeddings(models.VOCABULARY + 8)
    after = sum(parameter.numel() for parameter in model.parameters())
    _generate(model)
    assert _said(telemetry, semconv.MODEL_PARAMETERS) == [before, after]


def _append(model: Any) -> None:
    model.append(nn.Linear(4, 4))


def _replace(model: Any) -> None:
    model[1] = nn.Linear(4, 4, bias=False)


def _replace_deeper(model: Any) -> None:
    model[2][0] = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 4))


def _remove(model: Any) -> None:
    del model[1]


def _extend_without_children(model: Any) -> None:
    model[3].scale = nn.Linear(4, 4)


class _Bare(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


@pytest.mark.parametrize("modules", ["layers", "none"])
@pytest.mark.parametrize("change", [_append, _replace, _replace_deeper, _remove, _extend_without_children])
def test_size_after_modules_have_changed(telemetry: Telemetry, change: Callable[[Any], None], modules: str) -> None:
    """A module that is added, replaced or taken out between two calls counts from the next call on."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), _Bare())
    telemetry.instrument(model, modules=modules)
    sizes = []
    for _ in range(2):
        model(torch.ones(1, 4))
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
        if len(sizes) == 1:
            change(model)
    model(torch.ones(1, 4))
    assert sizes[0] != sizes[1]
    found = [(span.attributes or {}).get(semconv.MODEL_PARAMETERS) for span in telemetry.forwards()]
    assert found == [sizes[0], sizes[1], sizes[1]]


def test_size_after_a_module_without_children_gets_one(telemetry: Telemetry) -> None:
    """So does the first module inside the model."""
    model = _Bare()
    telemetry.instrument(model)
    model(torch.ones(1, 4))
    model.inner = nn.Linear(2, 2)
    model(torch.ones(1, 4))
    assert [(span.attributes or {}).get(semconv.MODEL_PARAMETERS) for span in telemetry.forwards()] == [None, 6]


# transformers 4 looks at the weights only, not at accelerate's hooks.
@pytest.mark.filterwarnings("ignore:You are calling .generate.. with the `input_ids` being on a device type:UserWarning")
def test_offloaded_model_says_where_it_runs(telemetry: Telemetry) -> None:
    """Weights that accelerate has offloaded are on meta; the model runs where its hooks move them."""
    accelerate = pytest.importorskip("accelerate")
    model = models.llama()
    telemetry.instrument(model)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert next(model.parameters()).device.type == "meta"
    _generate(model)
    attributes = telemetry.only()
    assert attributes[semconv.DEVICE] == "cpu"
    assert attributes[semconv.MEMORY_END] > 0


# ----------------------------------------------------------------------------------------------------------------- adapters
class Adapted(nn.Module):
    """A model with adapters that keeps their state as PEFT's wrapper does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.peft_config = {"law": None, "medicine": None}
        self.active_adapters = ["law"]
        self._adapters_disabled = False

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Run without adapters inside the block."""
        self._adapters_disabled = True
        yield
        self._adapters_disabled = False

    def merge_and_unload(self) -> nn.Module:
        """The model inside, with the weights of the adapter."""
        return self.inner

    def forward(self, hidden: Tensor) -> Any:
        return self.inner(hidden)


def test_adapters_of_the_call(telemetry: Telemetry) -> None:
    """Switched, several at once, disabled: on the span, and as a label of the metric."""
    model = Adapted(nn.Linear(2, 2))
    telemetry.instrument(model)
    model(torch.ones(1, 2))
    model.active_adapters = ["medicine", "law"]
    model(torch.ones(1, 2))
    with model.disable_adapter():
        model(torch.ones(1, 2))
    spans = [dict(span.attributes or {}) for span in telemetry.forwards()]
    assert [span.get(semconv.MODEL_ADAPTERS) for span in spans] == [("law",), ("medicine", "law"), None]
    assert [span.get(semconv.ADAPTER) for span in spans] == ["law", "medicine+law", None]
    labels = [row for row, _ in telemetry.metrics()[semconv.M_FORWARD_DURATION]]
    assert sorted("law" in label for label in labels) == [False, True, True]


def test_label_of_many_adapters_is_bounded(telemetry: Telemetry) -> None:
    """Past 50 values the label is ``other``; the span still names the adapter."""
    model = Adapted(nn.Linear(2, 2))
    telemetry.instrument(model)
    for number in range(55):
        model.active_adapters = [f"adapter-{number}"]
        model(torch.ones(1, 2))
    counts = [row for row, count in telemetry.metrics()[semconv.M_FORWARD_DURATION] for _ in range(count)]
    assert sum("'other'" in row for row in counts) == 5
    assert (telemetry.forwards()[-1].attributes or {})[semconv.ADAPTER] == "adapter-54"


def _peft(model: Any, *names: str) -> Any:
    peft = pytest.importorskip("peft")
    options = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "init_lora_weights": False}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**options), adapter_name=names[0])
    for name in names[1:]:
        wrapped.add_adapter(name, peft.LoraConfig(**options))
    return wrapped.eval()


def test_adapters_of_peft(telemetry: Telemetry) -> None:
    """Switched, disabled in a block and for good, merged, and chosen row by row."""
    model = _peft(models.llama(), "law", "medicine")
    telemetry.instrument(model)
    _generate(model)
    model.set_adapter("medicine")
    _generate(model)
    with model.disable_adapter():
        _generate(model)
    model.base_model.disable_adapter_layers()
    _generate(model)
    model.base_model.enable_adapter_layers()
    _generate(model, adapter_names=["law"])
    _generate(model, adapter_names=["__base__"])
    model.generate(models.prompt(2), max_new_tokens=2, adapter_names=["medicine", "law"])
    model.merge_adapter(["law"])
    _generate(model)
    assert _said(telemetry, semconv.ADAPTER) == ["law", "medicine", None, None, "law", None, "medicine+law", "law"]


def test_adapters_that_are_added_to_an_instrumented_model(telemetry: Telemetry) -> None:
    """A model that gets adapters after ``instrument()`` names them, and its parameters are counted again."""
    model = models.llama()
    telemetry.instrument(model)
    _generate(model)
    wrapped = _peft(model, "law")
    _generate(wrapped)
    assert _said(telemetry, semconv.ADAPTER) == [None, "law"]
    before, after = _said(telemetry, semconv.MODEL_PARAMETERS)
    assert before < after == sum(parameter.numel() for parameter in model.parameters())


def test_requests_after_merge_and_unload_of_peft(telemetry: Telemetry) -> None:
    """The merged model is followed: it has requests, without an adapter, and the handle still detaches it."""
    model = _peft(models.llama(), "law")
    handle = telemetry.instrument(model)
    _generate(model)
    model = model.merge_and_unload()
    _generate(model)
    assert _said(telemetry, semconv.ADAPTER) == ["law", None]
    handle.uninstrument()
    _generate(model)
    assert len(telemetry.requests()) == 2


def test_model_that_is_returned_by_merge_and_unload_is_followed(telemetry: Telemetry) -> None:
    """Requests go on under the inner model, whether or not the wrapper is kept."""
    wrapper: Any = Adapted(nn.Linear(2, 2))
    telemetry.instrument(wrapper)
    inner = wrapper.merge_and_unload()
    inner(torch.ones(1, 2))
    wrapper(torch.ones(1, 2))
    del wrapper
    inner(torch.ones(1, 2))
    assert [span.name for span in telemetry.forwards()] == ["forward Linear"] * 3
    assert inferspan.uninstrument(inner)
    inner(torch.ones(1, 2))
    assert len(telemetry.forwards()) == 3


# -------------------------------------------------------------------------------------------------------------------- cost
class Stack(nn.Module):
    """Many layers that its forward pass does not run."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(layers))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


def _python_calls(run: Any) -> int:
    """How many Python functions are called in ``run``."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def _calls_of_a_pass(telemetry: Telemetry, layers: int) -> int:
    model = Stack(layers)
    telemetry.instrument(model, modules="none")
    model(torch.ones(1, 2))
    return min(_python_calls(lambda: model(torch.ones(1, 2))) for _ in range(3))


def test_cost_does_not_grow_with_the_model(telemetry: Telemetry) -> None:
    """A call of an unchanged model looks at a few parameters, however many there are."""
    small, large = _calls_of_a_pass(telemetry, 2), _calls_of_a_pass(telemetry, 400)
    assert large <= small + 10
