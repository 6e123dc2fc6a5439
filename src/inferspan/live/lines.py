"""A snapshot, or a request that has ended, as plain lines of text, for logs, pipes and terminals without rich."""

from __future__ import annotations

import time
from collections.abc import Iterator

from inferspan.analysis.findings import wording
from inferspan.report.running.machine import card_text, cleaned, host_text
from inferspan.text.numbers import counted
from inferspan.text.quantities import count_text, real_text, seconds_text

from .figures import Ended, Snapshot

__all__ = ["ended_text", "outcome", "requests_text", "snapshot_lines"]


def snapshot_lines(now: Snapshot) -> Iterator[str]:
    """The lines of ``--plain``: requests, one line for each GPU and host, modules, warnings; what nobody sent is left out."""
    yield requests_text(now)
    for machine in now.machines:
        where = f" {cleaned(machine.name)}" if len(now.machines) > 1 else ""
        for number, card in enumerate(machine.cards):
            yield f"GPU {number}{where}: {card_text(card)}"
        if machine.cpu is not None or machine.used is not None:
            yield f"CPU{where}: {host_text(machine)}"
    if now.hottest:
        told = (f"{cleaned(hot.name)} {seconds_text(hot.seconds)} in {counted(hot.calls, 'call')}" for hot in now.hottest[:5])
        yield f"modules: {', '.join(told)}"
    if now.warnings:
        yield "warnings: " + ", ".join(f"{cleaned(wording(kind))} {count:,}" for kind, count in now.warnings)


def requests_text(now: Snapshot) -> str:
    """Requests, rates and times in one line."""
    parts = []
    if now.running is not None:
        parts.append(f"{now.running:,} running")
    parts.append(f"{counted(now.ended, 'request')} ended" + (f" ({now.failed:,} failed)" if now.failed else ""))
    if now.tokens_per_second is not None:
        parts.append(f"{real_text(now.tokens_per_second)} tokens/s over {now.window:.0f} s")
    for word, pair in (("TTFT", now.ttft), ("TPOT", now.tpot)):
        if pair is not None:
            parts.append(f"{word} p50 {seconds_text(pair[0])}, p95 {seconds_text(pair[1])}")
    return "; ".join(parts)


def outcome(one: Ended) -> str:
    """How a request ended: its error, or its finish reasons, counted."""
    if one.failed:
        return f"error {one.error_type}" if one.error_type else "error"
    counts = {reason: one.finish_reasons.count(reason) for reason in dict.fromkeys(one.finish_reasons)}
    return ", ".join(f"{reason} x{count}" if count > 1 else reason for reason, count in counts.items()) or "ok"


def ended_text(one: Ended) -> str:
    """A request in one line: when it ended, what it was, tokens, times, outcome, findings."""
    at = time.strftime("%H:%M:%S", time.localtime(one.end_ns / 1e9)) if one.end_ns else "--:--:--"
    parts = [at, cleaned(one.name)]
    if one.input_tokens is not None or one.output_tokens is not None:
        parts.append(f"{count_text(one.input_tokens)} in {count_text(one.output_tokens)} out")
    if one.seconds is not None:
        parts.append(seconds_text(one.seconds))
    if one.ttft is not None:
        parts.append(f"TTFT {seconds_text(one.ttft)}")
    if one.tpot is not None:
        parts.append(f"TPOT {seconds_text(one.tpot)}")
    parts.append(cleaned(outcome(one)))
    parts += [cleaned(wording(kind)) for kind in one.findings]
    return "  ".join(parts)
