"""A model on two ranks of gloo: each rank has its own request, right by itself, and computes what one process would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases.rank import KINDS

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300
WAYS = ("DDP", "FSDP2", "tensor parallel")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """What each of the two ranks has printed, by the way that the model was put on both."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.cases.rank", str(rank), str(folder)],
            cwd=ROOT,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        done = [process.communicate(timeout=LIMIT) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], "\n".join(error for _, error in done)
    lines = [[json.loads(line) for line in output.splitlines() if line.startswith("{")] for output, _ in done]
    return [{one["kind"]: one for one in of_rank} for of_rank in lines]


@pytest.mark.parametrize("kind", WAYS)
def test_each_rank_is_right_by_itself(ranks: list[dict[str, dict[str, Any]]], kind: str) -> None:
    """Each rank has one request of its own rows and tokens, with steps and modules, under its rank."""
    if kind not in KINDS:
        pytest.skip("FSDP2 of this torch needs a GPU")
    passes = kind == "DDP"
    for rank, found in enumerate(ranks):
        one = found[kind]
        assert one["equal"], "not what one process computes"
        assert one["requests"] == 1
        assert one["rows"] == 2
        assert one["tokens"] == (None if passes else 2 * 4)
        assert one["steps"] == (0 if passes else 4)
        assert one["modules"] > 0
        assert one["architecture"] == "LlamaForCausalLM"
        assert one["unobserved"] is None
        assert one["rank"] == rank
