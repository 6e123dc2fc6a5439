"""The command ``peaks``: the ceilings that the roofline compares with, and a measurement of the CPU."""

from __future__ import annotations

import argparse
from typing import Any

from inferspan.cli.failure import Failure
from inferspan.roofline.cards import CARDS
from inferspan.roofline.peaks import cache_file, read_measured
from inferspan.text.numbers import counted

__all__ = ["add_peaks"]


def add_peaks(commands: Any) -> None:
    """Add ``peaks`` to a parser's commands."""
    peaks = commands.add_parser("peaks", help="ceilings of devices for the roofline, and a short measurement of this CPU")
    peaks.add_argument("--measure", action="store_true", help="measure this CPU, some 3 seconds, and keep the figures in the cache folder")
    peaks.add_argument("--seconds", type=float, help="with --measure: seconds for each dtype and for the memory (default 0.5)")
    peaks.add_argument("--threads", type=int, help="with --measure: threads, as many as the program uses (default: as many as torch takes)")
    peaks.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    for option in ("seconds", "threads"):
        if getattr(arguments, option) is not None and not arguments.measure:
            raise Failure(f"peaks --{option} is for a measurement: add --measure")
    if arguments.measure:
        _measure(0.5 if arguments.seconds is None else arguments.seconds, arguments.threads)
    measured = read_measured()
    print(f"{'device':<44} {'TB/s':>7}  TFLOP/s by dtype")
    for key, row in measured.items():
        name = key.removesuffix("s") if key.endswith(", 1 threads") else key
        _line(name, row.get("bandwidth"), {key: value for key, value in row.items() if key != "bandwidth"})
    for card in CARDS:
        _line(card.name, card.bandwidth, card.flops)
    if not measured:
        print("this CPU was not measured: inferspan peaks --measure")


def _line(name: str, bandwidth: float | None, flops: Any) -> None:
    shown = "?" if bandwidth is None else f"{bandwidth / 1e12:.3f}"
    print(f"{name:<44} {shown:>7}  {', '.join(f'{dtype} {value / 1e12:.4g}' for dtype, value in flops.items()) or 'not stated'}")


def _measure(seconds: float, threads: int | None) -> None:
    if not 0 < seconds <= 60:
        raise Failure(f"peaks --seconds {seconds:g}: use a number above 0, at most 60")
    if threads is not None and not 1 <= threads <= 4096:
        raise Failure(f"peaks --threads {threads}: use a number from 1 to 4096")
    import torch

    from inferspan.roofline.cpu_peak import keep, measure

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        path = keep(measure(seconds))
    except OSError as error:
        raise Failure(f"cannot write {cache_file()}: {error.strerror}") from None
    used = counted(torch.get_num_threads(), "thread")
    print(f"measured with {used}, and kept in {path}: it counts for programs with as many threads")
