"""The rows of the table: what is switched on, how many spans that must give, and what the reader gets for it.

A row is a function that attaches something to a workload's model and returns its undo. ``expected`` is worked out from the model's structure, not
from what the library says, and the receiver's count must be that number. Rows that need something that is not there say what.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from benchmarks import peers
from benchmarks.models import Workload

__all__ = ["PLAIN", "ROWS", "Row", "chosen", "lifted", "sampled_steps"]

Undo = Callable[[], Any]
BUDGET = 50_000_000


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting, or one peer."""

    key: str
    name: str
    attach: Callable[[Workload], Undo]
    expected: Callable[[Workload], int | None]
    """Spans of one request; ``None`` where a peer's number is only reported."""
    gets: str
    missing: Callable[[Workload], str | None] = lambda _: None
    """Why it cannot run here, if so."""
    piped: bool = False
    """Whether the request goes through a pipeline, with and without."""
    compiled: bool = True
    """Whether it makes sense on a compiled decode."""
    exported: bool = False
    """Whether its target includes the time until everything has been exported."""


def lifted(**settings: Any) -> dict[str, Any]:
    """Settings with modules on every step and no budget."""
    return {"every_step": True, "max_spans_per_trace": BUDGET, "span_hard_cap": BUDGET, **settings}


def sampled_steps(tokens: int) -> int:
    """Steps that get module spans by default: the first one, then every power of two."""
    return sum(1 for step in range(tokens) if step & (step - 1) == 0)


def _frame(work: Workload) -> int:
    """The request, its phases and its steps."""
    return 1 + (2 if work.tokens > 1 else 1) + work.tokens


def _default(work: Workload) -> int:
    return _frame(work) + work.layers * (1 if work.compiled else sampled_steps(work.tokens))


def _every(modules: Callable[[Workload], int]) -> Callable[[Workload], int]:
    return lambda work: _frame(work) + modules(work) * (1 if work.compiled else work.tokens)


def _has(setting: str) -> bool:
    from inferspan import Settings

    return any(item.name == setting for item in fields(Settings))


def _ours(**settings: Any) -> Callable[[Workload], Undo]:
    def attach(work: Workload) -> Undo:
        import inferspan

        # Where there are device times they are on by default: a row that does not ask for them is one of host times.
        more = {"device_time": False} if _has("device_time") and "every_step" in settings else {}
        return inferspan.instrument(work.model, **{**work.providers, **more, **settings}).uninstrument

    return attach


def _needs_device_time(work: Workload) -> str | None:
    if not _has("device_time"):
        return "no setting device_time in this version"
    return None if work.cuda else "needs a GPU"


def _unsampled(work: Workload) -> Undo:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    import inferspan

    return inferspan.instrument(work.model, tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)).uninstrument


def _disabled(work: Workload) -> Undo:
    """``OTEL_SDK_DISABLED=true``, which the SDK reads when a provider is made."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    import inferspan

    os.environ["OTEL_SDK_DISABLED"] = "true"
    try:
        providers: dict[str, Any] = {
            "tracer_provider": TracerProvider(shutdown_on_exit=False),
            "meter_provider": MeterProvider(shutdown_on_exit=False),
        }
        handle = inferspan.instrument(work.model, **providers)
    except BaseException:
        del os.environ["OTEL_SDK_DISABLED"]
        raise

    def undo() -> None:
        del os.environ["OTEL_SDK_DISABLED"]
        handle.uninstrument()

    return undo


def _nothing(work: Workload) -> Undo:
    return lambda: None


def _zero(work: Workload) -> int:
    return 0


PLAIN = Row(key="plain", name="plain", attach=_nothing, expected=_zero, gets="")
"""What every other row is compared with."""

ROWS: tuple[Row, ...] = (
    Row(key="a/a", name="A/A: plain against plain", attach=_nothing, expected=_zero, gets="the noise of this measurement"),
    Row(key="unsampled", name="not sampled", attach=_unsampled, expected=_zero, gets="metrics of requests"),
    Row(key="disabled", name="OTEL_SDK_DISABLED", attach=_disabled, expected=_zero, gets="nothing, as asked for"),
    Row(
        key="default",
        name="default",
        attach=_ours(),
        expected=_default,
        gets="request, phases, every step with statistics of its logits, layers on sampled steps",
    ),
    Row(
        key="top-k",
        name="default, 5 likeliest tokens",
        attach=_ours(capture_content="SPAN_ONLY", top_k=5),
        expected=_default,
        gets="the same, and the likeliest tokens of every step",
    ),
    Row(
        key="layers",
        name="every step, layers",
        attach=_ours(**lifted(modules="layers")),
        expected=_every(lambda work: work.layers),
        gets="every step: layers, attention, MLP",
        compiled=False,
    ),
    Row(
        key="layers-device",
        name="every step, layers, device times",
        attach=_ours(**lifted(modules="layers", device_time=True)),
        expected=_every(lambda work: work.layers),
        gets="the same with device times",
        missing=_needs_device_time,
        compiled=False,
    ),
    Row(
        key="all",
        name="every step, all modules",
        attach=_ours(**lifted(modules="all")),
        expected=_every(lambda work: work.modules),
        gets="every step: every module",
        compiled=False,
        exported=True,
    ),
    Row(
        key="all-device",
        name="every step, all modules, device times",
        attach=_ours(**lifted(modules="all", device_time=True)),
        expected=_every(lambda work: work.modules),
        gets="the same with device times",
        missing=_needs_device_time,
        compiled=False,
        exported=True,
    ),
    *(
        Row(
            key=peer.key,
            name=peer.name,
            attach=peer.attach,
            expected=peer.expected,
            gets=peer.gets,
            missing=peer.missing,
            piped=peer.piped,
            compiled=peer.compiled,
        )
        for peer in peers.PEERS
    ),
)


def chosen(names: str | None) -> tuple[Row, ...]:
    """Rows whose key begins with one of the words of a comma list; all of them without.

    Raises:
        ValueError: a word is the beginning of no key.
    """
    if not names:
        return ROWS
    words = [word.strip() for word in names.split(",") if word.strip()]
    for word in words:
        if not any(row.key.startswith(word) for row in ROWS):
            raise ValueError(f"no row begins with {word!r}: there are {', '.join(row.key for row in ROWS)}")
    return tuple(row for row in ROWS if any(row.key.startswith(word) for word in words))
