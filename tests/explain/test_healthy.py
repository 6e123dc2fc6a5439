"""Programs in which nothing is wrong: explain says nothing."""

from __future__ import annotations

from pathlib import Path

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


def test_a_recording_without_requests(tmp_path: Path) -> None:
    """A model that is never called: no cause, and what is missing is named."""
    with recorded(tmp_path / "session.jsonl", blocks()) as handles:
        handles[0].flush()
    found = explained(tmp_path / "session.jsonl")
    assert list(found.causes) == []
    assert [one.what for one in found.missing] == ["everything"]
