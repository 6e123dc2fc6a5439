"""Modes of the program, such as ``FlopCounterMode``: they see the same operations with and without inferspan, whatever is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.cases import models
from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("one_thread")

EACH: dict[str, Any] = {"modules": "all", "every_step": True}
KINDS: dict[str, dict[str, Any]] = {
    "logits": {},
    "tokens": {"top_k": 3, "capture_content": "SPAN_ONLY"},
    "modules": EACH,
    "output_stats": {**EACH, "output_stats": True},
    "input_stats": {**EACH, "input_stats": True},
    "numerics": {"numerics": "all", "numerics_inputs": True},
    "attention": {"attention": "all", "attention_steps": "all"},
    "gradients": {"gradients": "all"},
    "memory": {"memory": "all"},
    "control_flow": {"control_flow": "all"},
    "data_flow": {**EACH, "data_flow": "modules"},
    "positions": {"top_k_positions": "all", "top_k": 2, "capture_content": "SPAN_ONLY"},
}


class _Dispatched(TorchDispatchMode):
    """Notes each operation that reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class _Called(TorchFunctionMode):
    """Notes each function of torch; not the attributes of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name not in ("__get__", "dim", "numel", "size", "is_floating_point", "stride", "element_size", "storage_offset", "data_ptr"):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


class _Flops(FlopCounterMode):
    """With the figures to compare."""

    def __init__(self) -> None:
        super().__init__(display=False)

    @property
    def seen(self) -> dict[str, int]:
        return {str(key): count for key, count in self.get_flop_counts()["Global"].items()}


def _generate(model: Any) -> Any:
    return model.generate(models.prompt(), max_new_tokens=3, min_new_tokens=3, do_sample=False)


def _sample(model: Any) -> Any:
    torch.manual_seed(3)
    mask = torch.ones_like(models.prompt())
    return model.generate(models.prompt(), attention_mask=mask, max_new_tokens=3, min_new_tokens=3, do_sample=True)


def _train(model: Any) -> Any:
    loss = model(models.prompt(), labels=models.prompt()).loss
    loss.backward()
    model.zero_grad()
    return loss


class _Last:
    """A criterion of the caller's that ends rows on a token."""

    def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
        return ids[:, -1] == 7


WAYS: dict[str, dict[str, Any]] = {
    "rows": {"rows": 2},
    "sequences": {"num_return_sequences": 2, "do_sample": True},
    "beams": {"num_beams": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
    "chunked": {"rows": 2, "prefill_chunk_size": 2},
    "criterion": {"stopping_criteria": [_Last()], "max_new_tokens": 3},
    "criterion for rows": {"rows": 2, "stopping_criteria": [_Last()], "max_new_tokens": 3},
    "criterion with beams": {"num_beams": 2, "stopping_criteria": [_Last()], "max_new_tokens": 3},
}


class _Draws(TorchDispatchMode):
    """A simulation: it draws a number in each operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        torch.rand(1)
        return result


def _in_a_way(model: Any, way: str) -> Any:
    options = {"max_new_tokens": 8, "do_sample": False, **WAYS[way]}
    ids = models.prompt(options.pop("rows", 1), 6)
    torch.manual_seed(3)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)


@pytest.mark.parametrize("mode", [_Dispatched, _Called])
@pytest.mark.parametrize("way", WAYS)
def test_a_mode_sees_the_operations_of_each_way_to_generate(telemetry: Telemetry, way: str, mode: Any) -> None:
    """Rows that end one after the other, drafts and criteria of the caller's: what is computed for us is hidden."""
    model = models.llama()
    seen: list[list[str]] = []
    for instruments in (False, True):
        if instruments:
            telemetry.instrument(model)
        _in_a_way(model, way)
        with mode() as active:
            _in_a_way(model, way)
        seen.append(active.seen)
    assert Counter(seen[1]) == Counter(seen[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_mode_that_draws_numbers(telemetry: Telemetry, way: str) -> None:
    """The same tokens, and the same numbers afterwards."""
    model = models.llama()
    results = []
    for instruments in (False, True):
        if instruments:
            telemetry.instrument(model)
        with _Draws():
            results.append((_in_a_way(model, way).tolist(), torch.rand(1).item()))
    assert results[1] == results[0]


USES: tuple[Callable[[Any], Any], ...] = (_generate, _sample, _train)


@pytest.mark.parametrize("mode", [_Dispatched, _Called, _Flops])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mode_sees_the_operations_of_the_model_alone(telemetry: Telemetry, kind: str, mode: Any) -> None:
    """Of ``generate()`` and of a pass with gradients, the same in the same order."""
    model = models.llama()
    expected: list[Any] = []
    found: list[Any] = []
    for kept, instruments in ((expected, False), (found, True)):
        if instruments:
            telemetry.instrument(model, **KINDS[kind])
        for use in USES:
            use(model)  # what is made once for all calls is made here
            with mode() as active:
                use(model)
            kept.append(active.seen)
    for use, with_us, without in zip(USES, found, expected, strict=True):
        assert with_us == without, use.__name__
        assert without
