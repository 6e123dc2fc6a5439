"""What a request does with the log of its data flow, if it has one; errors of ours are contained."""

from __future__ import annotations

from typing import Any

from inferspan.guard import contain
from inferspan.records import PassFlow, RequestEnd

__all__ = ["close_flow", "settle_flow", "take_flow"]


def take_flow(call: Any, step: int | None) -> PassFlow | None:
    """The data flow of the pass that has ended."""
    with contain("data flow"):
        found: PassFlow | None = call.flow.take(step)
        return found
    return None


def settle_flow(call: Any, end: RequestEnd) -> RequestEnd:
    """The end of the request, with the number of edges."""
    with contain("data flow"):
        found: RequestEnd = call.flow.settle(end)
        return found
    return end


def close_flow(call: Any) -> None:
    """Forget everything."""
    with contain("data flow"):
        call.flow.close()
    call.flow = None
