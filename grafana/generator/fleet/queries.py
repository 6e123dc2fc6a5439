"""What the rows of "Fleet and ranks" have in common: variables, queries, labels, texts."""

from __future__ import annotations

from inferspan import semconv as s

from ..catalogue import label
from ..queries import WINDOW, Queries
from ..variables import COMMON

__all__ = [
    "FAILED",
    "GENERAL",
    "NAMES",
    "NO_RANKS",
    "NO_REQUESTS",
    "PROCESS",
    "RANK",
    "WHOLE",
    "Q",
    "earlier",
    "of",
    "step_of_rank",
    "straggler",
]

NAMES = (*COMMON, "job", "rank", "by", "compare")
Q = Queries(NAMES)
WHOLE = Queries([name for name in NAMES if name not in ("rank", "instance", "host")])
"""For what is said of all ranks of a job, of which a choice of some must leave none out."""

RANK = label(s.RANK)
FAILED = f'{label(s.ERROR_TYPE)}!=""'
GENERAL = f'{label(s.HW_GPU_TASK)}="general"'
PROCESS = ("service_name", "job", "instance", "host_name", RANK, "service_version")
"""What tells one process from another, in the order in which the table shows it."""
NO_REQUESTS = "no generate() in this time range"
NO_RANKS = "no program with ranks (RANK and WORLD_SIZE in its environment)"


def of(*labels: str) -> str:
    """A legend of the values of labels."""
    return " ".join("{{" + name + "}}" for name in labels)


def earlier(expression: str) -> str:
    """The same some time ago."""
    return expression.replace(f"[{WINDOW}]", f"[{WINDOW}] offset $compare")


def step_of_rank() -> str:
    """Mean duration of a decode step, which depends on the rank and not on the length of prompts."""
    return WHOLE.mean(s.M_STEP_DURATION, f'{label(s.PHASE)}="{s.SPAN_DECODE}"', f'{RANK}!=""', by=["job", label(s.REQUEST_MODEL), RANK])


def straggler() -> str:
    """Step of each rank against the median of the ranks of its job that serve the same model."""
    group = f"job, {label(s.REQUEST_MODEL)}"
    return f"({step_of_rank()}) / on ({group}) group_left () quantile by ({group}) (0.5, {step_of_rank()})"
