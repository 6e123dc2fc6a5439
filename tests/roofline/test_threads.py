"""The number of threads, on which the ceilings of a CPU depend, is asked for on no thread of the program."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from tests.cases.telemetry import Telemetry


def test_no_thread_of_the_program_is_asked(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch would set the number of threads of MKL there, whose products then have other last bits."""
    asked: list[threading.Thread] = []
    real = torch.get_num_threads

    def noted() -> int:
        asked.append(threading.current_thread())
        return real()

    monkeypatch.setattr(torch, "get_num_threads", noted)
    telemetry.instrument(model := nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    used: list[threading.Thread] = []

    def run() -> None:
        used.append(threading.current_thread())
        model(torch.ones(1, 4))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    run()
    assert len(telemetry.forwards()) == 2
    assert asked
    assert not {*asked} & {*used}
