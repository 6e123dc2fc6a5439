"""Units that Grafana has no name of its own for: the text behind a number."""

from __future__ import annotations

__all__ = [
    "CORES",
    "DEVIATIONS",
    "ERRORS",
    "FLOPS",
    "NATS",
    "OWN",
    "PER_SECOND",
    "RANKS",
    "REPLAYS",
    "REQUESTS",
    "ROWS",
    "SEQUENCES",
    "SERIES",
    "TIMES",
    "TOKENS",
    "TOKENS_J",
    "TOKENS_S",
    "VALUES",
]

CORES = "suffix:cores"
"""CPUs that are busy."""
DEVIATIONS = "suffix:SD"
"""Standard deviations, on both sides of 0."""
TIMES = "suffix:x"
"""Multiples."""
PER_SECOND = "suffix:/s"
"""Where the title says of what: short, as Grafana writes a long number so small that its course comes up to it."""
FLOPS = "suffix:FLOP/s"
"""Floating point operations a second."""
TOKENS, TOKENS_S, TOKENS_J = "suffix:tok", "suffix:tok/s", "suffix:tok/J"
NATS, REQUESTS, SEQUENCES, SERIES = "suffix:nats", "suffix:requests", "suffix:sequences", "suffix:series"
ERRORS, RANKS, REPLAYS, ROWS, VALUES = "suffix:errors", "suffix:ranks", "suffix:replays", "suffix:rows", "suffix:values"
OWN = frozenset(value for value in tuple(globals().values()) if isinstance(value, str) and value.startswith("suffix:"))
"""All of them."""
