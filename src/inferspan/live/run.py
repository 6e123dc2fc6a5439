"""Runs a live display or a list of requests over a source until it ends or Ctrl-C comes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

from inferspan.text.numbers import counted

from .figures import Ended, Figures
from .follow import EARLIER_END
from .lines import ended_text, snapshot_lines

__all__ = ["show", "tail", "wants_rich"]

Source = Iterable[Mapping[str, Any] | None]
"""Decoded OTLP JSON objects, and ``None`` where there is nothing new."""


def wants_rich(out: TextIO, *, plain: bool) -> bool:
    """Whether the output is a terminal that rich can draw on."""
    if plain or not out.isatty():
        return False
    try:
        import rich.live  # noqa: F401
    except ImportError:
        return False
    return True


def show(source: Source, name: str, *, interval: float, plain: bool = False, out: TextIO | None = None) -> Figures:
    """Draw the figures at each interval, in place on a terminal, else as lines; and once more at the end.

    Args:
        source: what to read.
        name: of the source, for the title.
        interval: seconds between two pictures.
        plain: lines also on a terminal.
        out: default standard output.
    """
    out = out or sys.stdout
    figures = Figures()
    if wants_rich(out, plain=plain):
        from rich.console import Console
        from rich.live import Live

        from .display import panel

        with Live(panel(figures.snapshot(), name), console=Console(file=out), auto_refresh=False) as live:
            _feed(source, figures, interval, lambda: live.update(panel(figures.snapshot(), name), refresh=True))
        return figures

    def lines() -> None:
        print(time.strftime("%H:%M:%S"), *snapshot_lines(figures.snapshot()), sep="\n  ", file=out, flush=True)

    _feed(source, figures, interval, lines)
    return figures


def _feed(source: Source, figures: Figures, interval: float, draw: Callable[[], object]) -> None:
    """Draw on time, though the source may be busy for longer or wait."""
    done, failed = threading.Event(), []

    def draws() -> None:
        while not done.wait(interval):
            try:
                draw()
            except Exception as error:  # a terminal that has gone away: told by the thread that reads
                failed.append(error)
                return

    thread = threading.Thread(target=draws, name="inferspan-live", daemon=True)
    thread.start()
    try:
        for line in source:
            figures.take(line or {})
            if failed:
                raise failed[0]
    except KeyboardInterrupt:
        pass
    finally:
        done.set()
        thread.join(5)
    if failed:
        raise failed[0]
    draw()


def tail(
    source: Source, *, plain: bool = False, out: TextIO | None = None, earlier: bool = True, told: Callable[[str], object] = lambda _: None
) -> int:
    """Print each request in a line when it has ended, with its tokens coloured by certainty where they were captured.

    Args:
        source: what to read.
        plain: lines without colours also on a terminal.
        out: default standard output.
        earlier: whether requests before ``EARLIER_END`` are printed, or only counted.
        told: called with the number of those that are not printed.

    Returns:
        The number of requests that were printed.
    """
    write = _writer(out or sys.stdout, plain=plain)
    figures = Figures()
    count = skipped = 0
    begun = False
    try:
        for line in source:
            ended = figures.take(line or {})
            if not earlier:
                skipped += len(ended)
                begun = begun or bool(line)
                earlier = line is EARLIER_END
                if earlier and begun:
                    told(f"{counted(skipped, 'earlier request is', 'earlier requests are')} not shown; --from-start shows them")
                continue
            for one in ended:
                count += 1
                write(one)
        for one in figures.take({}):
            count += 1
            write(one)
    except KeyboardInterrupt:
        pass
    return count


def _writer(out: TextIO, *, plain: bool) -> Callable[[Ended], object]:
    """Prints a request, in colours on a terminal."""
    if wants_rich(out, plain=plain):
        from rich.console import Console

        from .display import coloured

        console = Console(file=out, soft_wrap=True)
        return lambda one: console.print(coloured(one))

    def write(one: Ended) -> None:
        print(ended_text(one), file=out, flush=True)
        text = "".join(token for token, _ in one.tokens).replace("\n", "⏎")
        if text:
            print(f"  {''.join(sign if sign.isprintable() else '?' for sign in text)}", file=out, flush=True)

    return write
