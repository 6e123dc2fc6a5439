"""What is measured on which machine: ``cpu`` for two cores in about ten minutes, ``gpu`` for one card in about ten.

A plan is a list of workloads, each with its share of the time, the greatest ratios it may show, and the parts that follow. Models are
loaded one after the other; the first one stays for the part after the table.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.models import Workload, load, prepare

__all__ = ["PARTS", "PLANS", "Case", "Plan", "custom", "workload", "workloads"]

PARTS = ("table", "export", "memory", "scale", "micro", "stages")
"""Parts of a run, in their order."""
SWITCHED_OFF = {"unsampled": 1.005, "disabled": 1.005}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of a plan: a model, how it runs, and its share of the time for the table."""

    model: str
    mode: str = "eager"
    tokens: int = 32
    prompt: int = 16
    batch: int = 1
    share: float = 1.0
    rows: str | None = None
    """Beginnings of the keys of its rows; all without."""

    @property
    def targets(self) -> dict[str, float]:
        """Greatest ratio that a row may show, by the key of the row; none where nobody has set any."""
        return TARGETS.get((self.model, self.mode), {})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Cases, parts and the seconds for all of it."""

    cases: tuple[Case, ...]
    parts: dict[str, float]
    """Parts, and the share of the time that each may take."""
    seconds: float
    rounds: int


COMPILED = {**SWITCHED_OFF, "default": 1.01, "top-k": 1.01}
TARGETS: dict[tuple[str, str], dict[str, float]] = {
    ("smollm2", "eager"): {**SWITCHED_OFF, "all": 1.05},
    ("llama-8b", "eager"): {**SWITCHED_OFF, "default": 1.02, "layers-device": 1.05, "all": 1.05, "all-device": 1.10},
    ("llama-8b", "prefill"): {"default": 1.01},
    ("llama-8b", "compiled"): COMPILED,
    ("llama-1b", "compiled"): COMPILED,
}
"""The greatest ratio that a row may show, by model and mode."""
FEW = "a/a,unsampled,disabled,default,top-k"

PLANS = {
    "cpu": Plan(
        cases=(Case(model="smollm2", tokens=32),),
        parts={"table": 0.44, "export": 0.08, "memory": 0.24, "scale": 0.16, "micro": 0.03, "stages": 0.01},
        seconds=600,
        rounds=40,
    ),
    # What runs eagerly comes first: once something has been compiled in a process, modules are observed by hooks, which cost more.
    "gpu": Plan(
        cases=(
            Case(model="llama-8b", tokens=24, prompt=64, share=0.46),
            Case(
                model="llama-8b",
                mode="prefill",
                tokens=1,
                prompt=2048,
                batch=32,
                share=0.14,
                rows="a/a,default,all-device",
            ),
            Case(model="llama-8b", mode="compiled", tokens=64, prompt=64, share=0.22, rows=FEW),
            Case(model="llama-1b", mode="compiled", tokens=96, prompt=64, share=0.18, rows=FEW),
        ),
        parts={"table": 0.86, "export": 0.06, "micro": 0.04},
        seconds=480,
        rounds=60,
    ),
}
"""Plans by name."""


def custom(models: str | None, *, mode: str, tokens: int, prompt: int, batch: int, rows: str | None) -> tuple[Case, ...]:
    """Cases of a comma list of models, all of the same size."""
    names = [name.strip() for name in (models or "").split(",") if name.strip()]
    return tuple(Case(model=name, mode=mode, tokens=tokens, prompt=prompt, batch=batch, rows=rows) for name in names)


def workloads(cases: tuple[Case, ...]) -> Iterator[tuple[Case, Workload]]:
    """Load each model once, as long as its cases stand beside each other."""
    import torch

    loaded: tuple[str, Any, Any] | None = None
    for case in cases:
        if loaded is None or loaded[0] != case.model:
            loaded = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            loaded = (case.model, *load(case.model))
        yield case, workload(case, loaded[1], loaded[2])


def workload(case: Case, model: Any, tokenizer: Any) -> Workload:
    """The workload of a case, with a model that was loaded for it."""
    made = prepare(case.model, model, tokenizer, mode=case.mode, tokens=case.tokens, prompt=case.prompt, batch=case.batch)
    made.targets = dict(case.targets)
    return made
