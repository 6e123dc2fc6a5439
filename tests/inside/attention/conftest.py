"""Nothing was compiled before: functions stay as they are afterwards."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch._dynamo.reset()
