"""Fixtures of the matrix: the listener of each pair, and libraries that keep their remarks to themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import transformers

from tests.cases.telemetry import Telemetry


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """One thread, no remarks of torch and transformers about unusual pairs, and nothing that an earlier pair has compiled."""
    torch._dynamo.reset()
    threads, verbosity = torch.get_num_threads(), transformers.logging.get_verbosity()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    transformers.logging.set_verbosity(verbosity)
    torch.set_num_threads(threads)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    listener = Telemetry()
    yield listener
    listener.close()
