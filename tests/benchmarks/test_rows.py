"""Rows of the benchmark's table: how many spans they must give, what is missing, and that they leave no trace."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import machine, models, peers
from benchmarks.models import Workload, light, llama, prepare
from benchmarks.rows import ROWS, chosen, sampled_steps

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 200,
    "num_hidden_layers": 2,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models as small as these lose by more threads."""
    with machine.one_thread():
        yield


def _work(tokens: int = 5, **changes: Any) -> Workload:
    return prepare("small", llama(**{**SHAPE, **changes}).cpu().float(), tokens=tokens)


def _row(key: str) -> Any:
    return next(row for row in ROWS if row.key == key)


@pytest.mark.parametrize(
    "make", [lambda: llama(**SHAPE).cpu().float(), lambda: llama(**SHAPE, tie_word_embeddings=True).cpu().float(), lambda: light(3)]
)
def test_modules(make: Any) -> None:
    """The number of modules is that of the calls which torch's hooks see in a forward pass, without the root."""
    model = make()
    work = prepare("any", model, tokens=2)
    calls: list[nn.Module] = []
    handles = [one.register_forward_hook(lambda module, args, output: calls.append(module)) for one in model.modules() if one is not model]
    work.request()
    for handle in handles:
        handle.remove()
    assert len(calls) == 2 * work.modules


@pytest.mark.parametrize(
    ("key", "tokens", "mode", "spans"),
    [
        ("a/a", 5, "eager", 0),
        ("unsampled", 5, "eager", 0),
        ("disabled", 5, "eager", 0),
        ("default", 5, "eager", 1 + 2 + 5 + 4 * 6),  # steps 0, 1, 2 and 4 with 2 layers of 3 spans
        ("default", 1, "eager", 1 + 1 + 1 + 6),
        ("default", 5, "compiled", 1 + 2 + 5 + 6),
        ("layers", 5, "eager", 1 + 2 + 5 + 5 * 6),
        ("all", 5, "eager", 1 + 2 + 5 + 5 * 31),
        ("naive", 5, "eager", 5 * 32),
        ("torchtel", 5, "eager", 6),
        ("openlit", 5, "eager", 1),
    ],
)
def test_expected(key: str, tokens: int, mode: str, spans: int) -> None:
    """The spans of a row follow from the model's structure and the number of tokens."""
    work = _work(tokens)
    work.mode = mode
    assert (work.layers, work.modules) == (6, 31)
    assert _row(key).expected(work) == spans


def test_sampled_steps() -> None:
    """The first step and every power of two get modules."""
    assert [sampled_steps(tokens) for tokens in (1, 2, 3, 5, 16, 17)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("key", ["naive", "profiler", "unsampled", "disabled", "default", "all"])
def test_no_trace(key: str) -> None:
    """What a row attaches is gone afterwards: hooks, attributes of the model, variables; and the model answers the same."""
    work = _work()
    before = [set(vars(one)) for one in work.model.modules()]
    expected = work.request()
    undo = _row(key).attach(work)
    assert torch.equal(work.request(), expected)
    undo()
    assert [set(vars(one)) for one in work.model.modules()] == before
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in work.model.modules())
    assert "OTEL_SDK_DISABLED" not in os.environ


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is not there is said to be, and so is one that needs a pipeline; those without a package always run."""

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    work = _work()
    assert {peer.key: peer.missing(work) for peer in peers.PEERS} == {
        "naive": None,
        "profiler": None,
        "torchtel": "not installed",
        "openllmetry": "not installed",
        "openlit": "not installed",
    }
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    assert peers.PEERS[-1].missing(work) == "sees pipelines only, and this model has no tokenizer"
    work.piped = work.request
    assert peers.PEERS[-1].missing(work) is None


def test_device_rows_need_a_gpu() -> None:
    """Rows with device times are not run on a CPU, and say why."""
    assert _row("all-device").missing(_work()) in ("needs a GPU", "no setting device_time in this version")


def test_chosen() -> None:
    """Rows are chosen by the beginning of their key; a word that begins none is an error that names them all."""
    assert [row.key for row in chosen("def, all")] == ["default", "all", "all-device"]
    assert chosen(None) == ROWS
    with pytest.raises(ValueError, match="no row begins with 'nothing': there are a/a, unsampled"):
        chosen("all,nothing")


def test_models() -> None:
    """Every model has a shape, or is loaded by name; the light one makes tokens without a cache."""
    assert set(models.MODELS) == {"smollm2", "llama-1b", "llama-8b", "tiny"}
    assert prepare("light", light(2), tokens=7).request().shape == (1, 16 + 7)
