"""Ports for servers that take theirs from a setting, chosen so that nobody else takes one before its server listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

__all__ = ["LOOPBACK", "free_ports"]

LOOPBACK = "127.0.0.1"

FIRST = 10_000
"""Below are ports of well-known servers, the defaults of collector and Jaeger among them."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""From this range the system gives ports to connections and to whoever binds port 0, which happens at any time."""


def _candidates() -> Iterator[int]:
    """Ports outside that range, round and round; each process of pytest-xdist has its own."""
    end = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = range(FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), end, processes)
    # Another run of the tests at the same time begins elsewhere.
    begin = os.getpid() * 97 % len(mine)
    return cycle([*mine[begin:], *mine[:begin]])


_next = _candidates()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on; all are held at once, so that none is given twice."""
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            each, port = held.enter_context(socket.socket()), next(_next)
            try:
                each.bind((LOOPBACK, port))
            except OSError:
                continue
            found.append(port)
        return found
