"""What the end of a plain forward pass says: shapes, and statistics of logits where reading them waits for nothing."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

import inferspan
from inferspan import semconv
from tests.capture.test_target import Recorder, _target
from tests.cases.telemetry import Telemetry


class Giving(nn.Module):
    """Returns what it was made with."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, hidden: Any) -> Any:
        return self.result


def _attributes(result: Any) -> dict[str, Any]:
    model, recorder = Giving(result), Recorder()
    target = _target(model, recorder)
    assert model(torch.ones(2, 3)) is result
    target.close()
    return dict(recorder.scopes[0].ended[0].attributes)


def test_logits_of_the_last_position() -> None:
    """Entropy of the last position's distribution, as the mean over rows."""
    logits = torch.zeros(2, 3, 8)
    logits[:, :2] = 100 * torch.eye(8)[:2]
    attributes = _attributes({"logits": logits})
    assert attributes[semconv.LOGITS_ENTROPY] == pytest.approx(torch.log(torch.tensor(8.0)).item(), rel=1e-5)
    assert attributes[semconv.OUTPUT_SHAPES] == ("2x3x8",) and attributes[semconv.BATCH_SIZE] == 2


@pytest.mark.parametrize(
    "logits",
    [torch.zeros(2, 3, 8, device="meta"), torch.zeros(2, 3, 8, dtype=torch.long), torch.zeros(2, 0, 8), torch.zeros(8), None, "text"],
    ids=["meta", "integers", "empty", "vector", "none", "text"],
)
def test_what_is_no_logits(logits: Any) -> None:
    """Anything else is left alone."""
    assert not [key for key in _attributes({"logits": logits}) if key.startswith("inferspan.logits")]


class Leaving(nn.Module):
    """Calls ``_call_impl`` itself, so that hooks see its passes, and leaves them by what no hook sees."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Past the slot."""
        return self._call_impl(*args, **kwargs)

    def forward(self, hidden: Any, held: Any) -> Any:
        raise SystemExit


def _leave(model: Any, held: Any) -> None:
    with suppress(SystemExit):
        model(torch.ones(1), held=held)


def test_a_pass_that_is_left_keeps_nothing(telemetry: Telemetry) -> None:
    """Neither the model nor what it was called with, when the thread of the pass is gone."""
    model, held = Leaving(), torch.zeros(1000)
    inferspan.instrument(model, tracer_provider=telemetry.tracer_provider, nvml=False, host=False, allocator=False)
    known = weakref.ref(model), weakref.ref(held)
    thread = threading.Thread(target=_leave, args=(model, {"key": held}))
    thread.start()
    thread.join()
    del model, held, thread
    gc.collect()
    assert [reference() for reference in known] == [None, None]
