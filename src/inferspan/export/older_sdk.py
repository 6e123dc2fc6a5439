"""What releases of the SDK before 1.44 lack: an instance id of each process, and readers that join a provider later.

In comes the resource of our providers, or a meter provider of the host's. An SDK that can do it itself is left to it; the others, 1.40 to
1.43, are reached through private parts that will not change any more.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferspan.guard import contain

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = ["instance_id", "joining", "renew_in_children"]


def instance_id() -> str:
    """A new value of ``service.instance.id``, as the SDK itself makes it from 1.43 on."""
    return str(uuid.uuid4())


def renew_in_children(resource: Resource) -> None:
    """Give each child that is forked from now on an instance id of its own, as the SDK itself does from 1.44 on.

    Without it the metrics of all processes are one series, which jumps between their sums.

    Args:
        resource: that of our providers, which all of them and their tracers and loggers share.
    """
    from opentelemetry.sdk import resources

    if hasattr(resources, "_get_process_dependent_resource") or not hasattr(os, "register_at_fork"):
        return

    def renew() -> None:
        with contain("metrics of a forked process"):
            # Tracers have taken the resource from their provider, so it is its content that changes.
            changed: Any = resource
            changed._attributes = resource.merge(resources.Resource({resources.SERVICE_INSTANCE_ID: instance_id()}))._attributes

    os.register_at_fork(after_in_child=renew)


def joining(provider: Any) -> Callable[[Any], None] | None:
    """How a metric reader comes to read a provider that exists already; ``None`` where it cannot.

    Args:
        provider: a meter provider of the SDK or of any other kind.
    """
    if hasattr(provider, "add_metric_reader"):  # from 1.43 on
        public: Callable[[Any], None] = provider.add_metric_reader
        return public
    consumer: Any = getattr(provider, "_measurement_consumer", None)
    if not hasattr(consumer, "_reader_storages"):
        return None

    def join(reader: Any) -> None:
        from opentelemetry.sdk.metrics._internal import metric_reader_storage

        made: Any = metric_reader_storage.MetricReaderStorage
        storage = made(consumer._sdk_config, reader._instrument_class_temporality, reader._instrument_class_aggregation)
        with consumer._lock:
            # Measurements of other threads iterate over the present dictionary.
            consumer._reader_storages = {**consumer._reader_storages, reader: storage}
        reader._set_collect_callback(consumer.collect)

    return join
