"""Programs in which nothing is wrong: explain says nothing."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.explain.planted import NAP, Sleeping, blocks, generate, llama
from tests.explain.recording import explained, recorded


def test_equal_layers_and_even_batches(tmp_path: Path) -> None:
    """Requests of the same size through equal layers, whose work is planted, so that other work on this machine does not decide."""
    model = llama()
    for layer in model.model.layers:
        layer.mlp = Sleeping(layer.mlp, NAP)
    with recorded(tmp_path / "session.jsonl", model):
        for seed in range(5):
            generate(model, rows=2, tokens=8, seed=seed)
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


class Timed(nn.Linear):
    """A layer that takes a time for each of its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.in_features * NAP / 10)
        return super().forward(x)


def test_layers_of_other_sizes_in_a_row(tmp_path: Path) -> None:
    """The first layer is larger than the others, so it takes longer: they are not its equals."""
    model = nn.Sequential(Timed(20, 2), nn.ReLU(), Timed(2, 2), Timed(2, 2), Timed(2, 2)).eval()
    with recorded(tmp_path / "session.jsonl", model, modules="all"):
        for _ in range(5):
            model(torch.ones(4, 20))
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


def test_layers_of_other_classes_in_a_row(tmp_path: Path) -> None:
    """Activations between layers of the same shape are not their equals."""
    model = nn.Sequential(Timed(8, 8), nn.ReLU(), nn.Tanh(), nn.ReLU(), Timed(8, 8)).eval()
    with recorded(tmp_path / "session.jsonl", model, modules="all"):
        for _ in range(5):
            model(torch.ones(4, 8))
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


def tower(*inside: nn.Module) -> nn.Module:
    """A network in which the one module of its kind with other modules inside takes the time."""
    model = nn.Sequential()
    model.embed, model.tower, model.head = nn.Linear(50, 50), nn.Sequential(*inside), nn.Linear(50, 4)
    return model.eval()


def test_a_module_whose_time_is_that_of_modules_inside(tmp_path: Path) -> None:
    """Equal layers inside take it, and are recorded."""
    model = tower(Timed(50, 50), Timed(50, 50), Timed(50, 50))
    with recorded(tmp_path / "session.jsonl", model, modules="all"):
        for _ in range(5):
            model(torch.ones(4, 50))
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


def test_a_module_around_others_that_are_not_recorded(tmp_path: Path) -> None:
    """Its time without the one recorded module inside is that of the others: nothing is known of its own code."""
    model = tower(Timed(50, 50), Timed(50, 50), nn.Linear(50, 50))
    with recorded(tmp_path / "session.jsonl", model, modules="embed,tower,tower.2,head"):
        for _ in range(5):
            model(torch.ones(4, 50))
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


def test_a_recording_without_requests(tmp_path: Path) -> None:
    """A model that is never called: no cause, and what is missing is named."""
    with recorded(tmp_path / "session.jsonl", blocks()) as handles:
        handles[0].flush()
    found = explained(tmp_path / "session.jsonl")
    assert list(found.causes) == []
    assert [one.what for one in found.missing] == ["everything"]
