"""How often something is attached to the modules of a model: for recorded passes, and for nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from inferspan.capture.modules.hooks import Observed
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached


@pytest.fixture
def attachings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever an engine puts its observers on the modules."""
    found: list[int] = []
    attach = Observed.attach

    def counted(group: Observed) -> None:
        found.append(1)
        attach(group)

    monkeypatch.setattr(Observed, "attach", counted)
    return found


@pytest.mark.parametrize(
    ("sampler", "settings", "times", "recorded"),
    [
        (ALWAYS_ON, {}, 3, [0, 1, 2, 4, 8]),
        (ALWAYS_ON, {"every_step": True}, 1, list(range(12))),
        (ALWAYS_ON, {"modules": "none"}, 0, []),
        (ALWAYS_OFF, {"every_step": True}, 0, []),
    ],
    ids=["default", "every step", "no modules", "not sampled"],
)
def test_attached_for_recorded_steps_only(
    attachings: list[int], monkeypatch: pytest.MonkeyPatch, sampler: Sampler, settings: dict[str, Any], times: int, recorded: list[int]
) -> None:
    """Steps that are recorded have observers on the modules, one after the other without taking them off; all others have none."""
    telemetry, model = Telemetry(sampler), models.llama()
    seen: list[bool] = []
    prepare = type(model).prepare_inputs_for_generation

    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(any(attached(model.model).values()))
        return prepare(self, *args, **kwargs)

    # On the class: an instance's own method would hide ours, and its steps would begin unannounced.
    monkeypatch.setattr(type(model), "prepare_inputs_for_generation", prepared)
    telemetry.instrument(model, **settings)
    try:
        with torch.no_grad():
            model.generate(models.prompt(), do_sample=False, max_new_tokens=12, min_new_tokens=12)
    finally:
        telemetry.close()
    assert [index for index, one in enumerate(seen) if one] == recorded and len(seen) == 12
    assert len(attachings) == times <= len(recorded)
    assert not any(attached(model).values())
