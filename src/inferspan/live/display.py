"""A snapshot as a panel of rich, redrawn in place, and tokens coloured by how sure the model was of them."""

from __future__ import annotations

from typing import Any

from inferspan.analysis.findings import wording
from inferspan.report.running.machine import card_text, cleaned, host_text
from inferspan.text.numbers import counted
from inferspan.text.quantities import real_text, seconds_text

from .figures import Ended, Snapshot
from .lines import ended_text

__all__ = ["certainty_style", "coloured", "panel"]

_STYLES = ((0.9, "green"), (0.5, "yellow"), (0.2, "dark_orange"), (0.0, "red"))
"""From this probability on, in this colour."""


def certainty_style(probability: float | None) -> str:
    """The colour of a token that was chosen with this probability."""
    if probability is None:
        return ""
    return next(style for least, style in _STYLES if probability >= least)


def coloured(one: Ended) -> Any:
    """The line of a request, followed by its tokens in the colours of their probabilities, if they were captured."""
    from rich.text import Text

    line = Text(ended_text(one), style="red" if one.failed else "")
    if one.tokens:
        line.append("\n  ")
        for text, probability in one.tokens:
            line.append(cleaned(text.replace("\n", "⏎")), style=certainty_style(probability))
    return line


def panel(now: Snapshot, source: str) -> Any:
    """The whole display.

    Args:
        now: the figures.
        source: what is looked at, for the title.
    """
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = [_requests(now)]
    machines = Table.grid(padding=(0, 2))
    for machine in now.machines:
        where = f" {cleaned(machine.name)}" if len(now.machines) > 1 else ""
        for number, card in enumerate(machine.cards):
            machines.add_row(Text(f"GPU {number}{where}", style="bold"), Text(cleaned(card.name)), Text(card_text(card)))
        if machine.cpu is not None or machine.used is not None:
            machines.add_row(Text(f"CPU{where}", style="bold"), Text(""), Text(host_text(machine)))
    if machines.row_count:
        parts += [Text(""), machines]
    if now.hottest:
        modules = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("hottest modules", "time", "calls"):
            modules.add_column(heading, justify="left" if heading.startswith("hot") else "right", overflow="ellipsis", no_wrap=True)
        for hot in now.hottest[:5]:
            modules.add_row(Text(cleaned(hot.name)), seconds_text(hot.seconds) + (" (device)" if hot.device else ""), f"{hot.calls:,}")
        parts += [Text(""), modules]
    if now.warnings:
        told = ", ".join(f"{cleaned(wording(kind))} {count:,}" for kind, count in now.warnings)
        parts += [Text(""), Text(f"warnings: {told}", style="yellow")]
    age = "nothing received yet" if now.age is None else f"last received {now.age:.0f} s ago"
    title = Text("inferspan live ", style="bold").append(cleaned(", ".join(now.services)) or cleaned(source), style="not bold")
    below = Text(f"{cleaned(source)}; {age}; Ctrl-C ends it")
    return Panel(Group(*parts), title=title, subtitle=below, title_align="left", subtitle_align="left")


def _requests(now: Snapshot) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3))
    running = "-" if now.running is None else f"{now.running:,}"
    ended = counted(now.ended, "request")
    table.add_row(
        Text.assemble(("running ", "bold"), running),
        Text.assemble(("ended ", "bold"), ended, (f" ({now.failed:,} failed)" if now.failed else "", "red")),
        Text.assemble(("tokens/s ", "bold"), real_text(now.tokens_per_second)),
        Text.assemble(("requests/s ", "bold"), real_text(now.requests_per_second)),
    )
    pairs = [
        Text.assemble((f"{word} ", "bold"), f"p50 {seconds_text(pair[0])}, p95 {seconds_text(pair[1])}")
        for word, pair in (("TTFT", now.ttft), ("TPOT", now.tpot))
        if pair is not None
    ]
    if pairs:
        table.add_row(*pairs)
    return table
