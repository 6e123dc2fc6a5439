"""Ends the programs when the supervisor is gone without having done it: killed, or out of memory.

Reads references of programs from standard input, one a line. The pipe closes when the supervisor ends, however it ends; ``done``
before that means that nothing is left to do. Works on every system; on Linux the kernel ends the programs themselves at once, and
this finds what they had forked.
"""

from __future__ import annotations

import sys

from inferspan.stack.processes import Reference, end

__all__ = ["keep"]


def keep() -> None:
    """Wait for the end of the supervisor, then of everything."""
    leaders = []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        pid, mark = line.split()
        leaders.append(Reference(int(pid), mark))
    end(leaders, grace=0)
