"""What releases of the SDK lack: before 1.44 an instance id of each process and readers that join a provider; processors that leave one.

In comes the resource of our providers, or a provider of the host's. An SDK that can do it itself is left to it; the others are reached
through private parts. Those of 1.40 to 1.43 will not change any more; where those of later ones are not as expected, nothing is taken off.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferspan import semconv
from inferspan.guard import contain

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = ["instance_id", "joining", "leave", "renew_in_children"]


def instance_id() -> str:
    """A new value of ``service.instance.id``, as the SDK itself makes it from 1.43 on."""
    return str(uuid.uuid4())


def renew_in_children(resource: Resource) -> None:
    """Give each child that is forked from now on ids of its own, as the SDK itself and ``fork`` do from 1.44 on.

    Without it the metrics of all processes are one series, which jumps between their sums.

    Args:
        resource: that of our providers, which all of them and their tracers and loggers share.
    """
    from opentelemetry.sdk import resources

    if hasattr(resources, "_get_process_dependent_resource") or not hasattr(os, "register_at_fork"):
        return

    ours = resource.attributes.get(semconv.PROCESS_PID) == os.getpid()

    def renew() -> None:
        with contain("metrics of a forked process"):
            # Tracers have taken the resource from their provider, so it is its content that changes.
            changed: Any = resource
            ids: dict[str, str | int] = {resources.SERVICE_INSTANCE_ID: instance_id()}
            if ours:
                ids[semconv.PROCESS_PID] = os.getpid()
            changed._attributes = resource.merge(resources.Resource(ids))._attributes

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


def leave(provider: Any, signal: str) -> Callable[[Any], None] | None:
    """How a processor or reader leaves a provider, without being closed; ``None`` where it cannot.

    ``remove_metric_reader`` of the SDK closes the reader after it has lost its provider, so that its last values are never read.

    Args:
        provider: of the SDK or of any other kind.
        signal: ``traces``, ``metrics`` or ``logs``.
    """
    owner, name = _held_by(provider, signal)
    lock = getattr(owner, "_lock", None)
    if not hasattr(owner, name) or lock is None:
        return None

    def take_off(part: Any) -> None:
        with lock:
            # Other threads iterate over the present one.
            held = getattr(owner, name)
            if isinstance(held, dict):
                setattr(owner, name, {each: storage for each, storage in held.items() if each is not part})
            else:
                setattr(owner, name, tuple(each for each in held if each is not part))
        if signal == "metrics":
            getattr(provider, "_all_metric_readers", set()).discard(part)

    return take_off


def _held_by(provider: Any, signal: str) -> tuple[Any, str]:
    """The object that holds the parts of a provider, and its attribute."""
    if signal == "traces":
        return getattr(provider, "_active_span_processor", None), "_span_processors"
    if signal == "metrics":
        return getattr(provider, "_measurement_consumer", None), "_reader_storages"
    return getattr(provider, "_multi_log_record_processor", None), "_log_record_processors"
