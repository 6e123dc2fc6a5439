"""Modes of the program, such as ``FlopCounterMode``: they see the same operations with and without inferspan, whatever is looked at."""

from __future__ import annotations

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
