"""The state of an instrumented model: for ``handle.status()``, and for the log when it begins and ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from inferspan.guard import contain
from inferspan.settings import Settings
from inferspan.summaries.status import Status, status_of

if TYPE_CHECKING:
    from inferspan.capture.target import Target

__all__ = ["log_status", "status_now"]

_PAUSED = "paused: no new request is recorded until handle.resume()"
_log = logging.getLogger("inferspan")


def status_now(target: Target, settings: Settings) -> Status:
    """What is attached to the model now; an empty status once nothing is."""
    from inferspan.capture.modules.attached import attached_to

    with contain("status of a handle"):
        if target.is_open:
            info = target.info
            found = attached_to(target.model, target.engine)
            functions = len(target.engine.inside.functions)
            name = info.name or info.architecture
            reasons = [_PAUSED if target.pausing.paused else None, target.unobserved]
            unobserved = "; ".join(reason for reason in reasons if reason) or None
            return status_of(settings, model=name, functions=functions, unobserved=unobserved, **found)
    return Status()


def log_status(event: str, target: Target, settings: Settings) -> None:
    """Log at debug level how many modules are observed, and how many hooks are on them and on the model."""
    with contain("status of a handle"):
        if _log.isEnabledFor(logging.DEBUG):
            status = status_now(target, settings)
            _log.debug("%s %s, %d on the model itself", event, status, status.root_hooks)
