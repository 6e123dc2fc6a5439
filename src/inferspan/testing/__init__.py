"""For tests of programs that use inferspan: record requests, look at them, refuse slow-downs, and pretend that there are GPUs.

``record`` writes what a model does in a block to a file of its own and reads it back; ``assert_no_regression`` compares two recordings
with their noise; ``fake_gpus`` stands in for the NVML binding. Fixtures are in ``inferspan.testing.plugin``, which needs pytest. Nothing
here touches global providers of OpenTelemetry.
"""

from __future__ import annotations

from .gpus import FakeGpu, fake_gpus
from .recording import Recording, record
from .regression import CannotJudge, assert_no_regression

__all__ = ["CannotJudge", "FakeGpu", "Recording", "assert_no_regression", "fake_gpus", "record"]
