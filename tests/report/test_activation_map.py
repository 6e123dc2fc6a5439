"""The map of activations on the page: a row for each module, a column for each step with recorded modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import inferspan
from tests.cases import models
from tests.report.test_page_use import BROWSER, used

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
MAP = """
const rows = () => all(".timeline .row").filter((row) => row.querySelector("svg.cells"));
const cells = () => rows().map((row) => row.querySelectorAll("rect").length);
const choose = (select, value) => { select.value = String(value); select.dispatchEvent(new Event("change")); };
"""


def _recorded(path: Path, model: Any, run: Any, **settings: Any) -> Path:
    handle = inferspan.instrument(model, session_file=path, nvml=False, host=False, **settings)
    with torch.no_grad():
        run()
    handle.flush()
    handle.uninstrument()
    return path


def test_modules_are_rows_and_steps_are_columns(tmp_path: Path) -> None:
    """Those with recorded modules; a cell says what it is of, and the figure can be chosen."""
    model = models.llama()
    path = _recorded(
        tmp_path / "session.jsonl", model, lambda: model.generate(models.prompt(), do_sample=False, max_new_tokens=4, min_new_tokens=4),
        output_stats=True, input_stats=True, every_step=True,
    )  # fmt: skip
    script = MAP + """
    said.push(rows().map((row) => row.querySelector(".label").textContent).join(), cells().join());
    const cell = rows()[0].querySelectorAll("rect")[2], first = cell.tip();
    said.push(first.split("\\n")[0], first.split("\\n")[1].startsWith("largest magnitude"));
    const selects = all("h3").find((head) => head.textContent === "Activations").nextElementSibling.querySelectorAll("select");
    choose(selects[0], 2);
    said.push(rows()[0].querySelectorAll("rect")[2].tip().split("\\n")[1].startsWith("standard deviation"));
    choose(selects[1], 1);
    said.push(cells().join());
    """
    layers = [f"model.layers.{layer}{part}" for layer in (0, 1) for part in ("", ".self_attn", ".mlp")]
    assert used([path], tmp_path, script) == [
        ",".join(layers), "4,4,4,4,4,4", "model.layers.0 (LlamaDecoderLayer), step 2", True, True, "4,4,4,4,4,4",
    ]  # fmt: skip


def test_bad_and_negative_values_are_told_apart(tmp_path: Path) -> None:
    """A plain pass is one column; NaN is red with its number, a negative mean has another colour."""
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    nn.init.constant_(model[0].weight, -1.0)
    nn.init.constant_(model[1].bias, float("nan"))
    path = _recorded(tmp_path / "session.jsonl", model, lambda: model(torch.ones(1, 2) * 3), output_stats=True, modules="all")
    script = MAP + """
    choose(all("h3").find((head) => head.textContent === "Activations").nextElementSibling.querySelectorAll("select")[0], 1);
    const found = rows().map((row) => row.querySelector("rect"));
    said.push(found.map((cell) => cell.style.fill).join(), found[1].tip().includes("2 NaN"), texts(".timeline .small").join().includes("orange is negative"));
    """
    assert used([path], tmp_path, script) == ["var(--prefill),var(--bad)", True, True]


def test_without_figures_there_is_no_map(tmp_path: Path) -> None:
    """The section is left out."""
    model = nn.Sequential(nn.Linear(2, 2))
    path = _recorded(tmp_path / "session.jsonl", model, lambda: model(torch.ones(1, 2)), modules="all")
    assert used([path], tmp_path, MAP + "said.push(rows().length, texts('h3').includes('Activations'));") == [0, False]
