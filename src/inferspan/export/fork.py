"""A forked child: its sums begin at zero, at a time of its own, and its resource has its process id.

The SDK gives a child a resource of its own and leaves it the sums of its parent, so that all processes together count the parent's
requests once more for every child. In comes a metric reader of ours; its storage is emptied in each child, before anything of the
program runs there. Instruments stay valid: the SDK makes what it needs of them at their next measurement. Only private parts of the SDK
can do that; where they are not as expected, an error of ours is logged in the child and its sums are those that the SDK leaves it.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from inferspan import semconv
from inferspan.guard import contain

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = ["begin_at_zero_in_children", "own_id_in_children"]


def own_id_in_children(provider: Any, resource: Resource) -> None:
    """Give the resource of a provider its process id in every child that is forked from now on, unless the user has set another one.

    Args:
        provider: of ours. From 1.44 on the SDK can change its resource; for others ``older_sdk`` does.
        resource: that of the provider.
    """
    theirs = resource.attributes.get(semconv.PROCESS_PID) != os.getpid()
    if theirs or not hasattr(provider, "_update_resource") or not hasattr(os, "register_at_fork"):
        return
    known = weakref.ref(provider)

    def renew() -> None:
        from opentelemetry.sdk.resources import Resource

        with contain("resource of a forked process"):
            changed = known()
            if changed is not None:
                changed._update_resource(Resource({semconv.PROCESS_PID: os.getpid()}))

    os.register_at_fork(after_in_child=renew)


def begin_at_zero_in_children(reader: Any, provider: Any, *, ours: bool) -> None:
    """Empty the storage of a reader in every child that is forked from now on.

    Args:
        reader: a metric reader that we have made.
        provider: the meter provider that it reads.
        ours: whether the provider is ours, too; of a host's only what belongs to the reader is touched.
    """
    if not hasattr(os, "register_at_fork"):
        return

    def begin() -> None:
        with contain("metrics of a forked process"):
            consumer = provider._measurement_consumer
            storage = consumer._reader_storages.get(reader)
            if storage is None:  # its session file is closed
                return
            # Threads of the parent may have held any of the locks, and none of them is here to release it.
            storage._lock = threading.RLock()
            storage._instrument_view_instrument_matches = {}
            if hasattr(reader, "_export_lock"):
                reader._export_lock = threading.Lock()
            if ours:
                consumer._lock = threading.Lock()

    os.register_at_fork(after_in_child=begin)
