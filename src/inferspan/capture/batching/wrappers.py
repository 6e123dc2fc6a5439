"""Wrappers around the batching manager of transformers and its loop, which write the log.

A request begins in ``add_request()``, on the thread and in the context of its caller. On the loop's thread a turn is seen in
``_generation_loop_body``, the end of a step in ``update_batch``, ends of requests where their results are delivered, cancelled and
preempted requests where the scheduler says so. Every wrapper passes arguments, results and exceptions through untouched. transformers
is never imported here: without its module for continuous batching nothing is wrapped, and one whose classes are not those that were read
(transformers 5.24) is not observed, which a warning says once.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from inferspan.capture.chat import chat_of_ids
from inferspan.capture.failures import failure_of
from inferspan.capture.owner import Owner
from inferspan.capture.patching import ClassMethods, Undo
from inferspan.guard import contain, read_attribute
from inferspan.records import Failure
from inferspan.setting_checks import warn_once

from .log import Arrived, BatchLog, Cancelled, Delivered, Failed, Preempted, Ran, Refused
from .reader import MOST_OPEN, BatchReader
from .request import BatchedRequest, start_request

__all__ = ["attach_batching", "forked"]

_PACKAGE = "transformers.generation.continuous_batching"
_CLASSES = {
    "ContinuousBatchingManager": ("continuous_api", ("add_request", "_generation_loop_body", "_run_generation_loop")),
    "ContinuousBatchProcessor": ("continuous_api", ("update_batch",)),
    "OutputRouter": ("continuous_api", ("deliver", "deliver_batch", "fail_and_deliver")),
    "RequestState": ("requests", ("__post_init__",)),
    "FutureRequestState": ("requests", ("query_length", "has_new_token", "state")),
    "Scheduler": ("scheduler", ("clear_cancelled_requests",)),
    "OffloadingManager": ("offloading_manager", ("offload_requests",)),
}
"""The classes that are wrapped or read, the modules they are in, and what they must have."""


class _Here(threading.local):
    log: BatchLog | None = None
    """Of the loop that this thread runs."""
    arriving: tuple[BatchReader, BatchedRequest] | None = None
    """The request that ``add_request()`` is about to queue on this thread."""


_here = _Here()
_readers: weakref.WeakKeyDictionary[Any, BatchReader] = weakref.WeakKeyDictionary()
_left: deque[BatchReader] = deque()
"""Readers whose managers were collected."""
_lock = threading.RLock()


def forked() -> None:
    """Called in a forked child: the loops of the parent do not run in it."""
    global _lock
    _lock = threading.RLock()
    for found in list(_readers.values()):
        found.forked()
    _readers.clear()
    _left.clear()
    _here.log = _here.arriving = None


def attach_batching(owner_of: Callable[[object], Owner | None], owner: Owner, model: Any, classes: ClassMethods, undo: Undo) -> None:
    """Observe the batching managers of a model, those that are there and those to come.

    Args:
        owner_of: finds the instrumentation of a model, if it has one.
        owner: that of this model.
        model: the instrumented model.
        classes: the wrapped methods of classes.
        undo: where the way back is put.
    """
    if not callable(getattr(type(model), "generate_batch", None)):
        return
    kinds = _kinds()
    if kinds is None:
        if callable(getattr(type(model), "init_continuous_batching", None)):
            undo.push(classes.acquire(type(model), "init_continuous_batching", _around_unknown))
        return
    undo.push(lambda: _close(owner))
    for kind, name, around in _wrapped(owner_of):
        undo.push(classes.acquire(kinds[kind], name, around))


def _kinds() -> dict[str, Any] | None:
    """The classes by name; ``None`` if one of them is not what it was when this was written."""
    found: dict[str, Any] = {}
    for name, (module, needed) in _CLASSES.items():
        kind = getattr(sys.modules.get(f"{_PACKAGE}.{module}"), name, None)
        if kind is None or not all(hasattr(kind, attribute) for attribute in needed):
            return None
        found[name] = kind
    return found


def _around_unknown(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    version = getattr(sys.modules.get("transformers"), "__version__", "?")
    warn_once("continuous batching of transformers %s is not observed: its classes are not those of transformers 5.24", version)
    return original(*args, **kwargs)


def _wrapped(owner_of: Callable[[object], Owner | None]) -> list[tuple[str, str, Any]]:
    reader_of = _reader_source(owner_of)
    return [
        ("ContinuousBatchingManager", "add_request", _around_add_request(reader_of)),
        ("ContinuousBatchingManager", "_generation_loop_body", _around_turn(reader_of)),
        ("ContinuousBatchingManager", "_run_generation_loop", _around_loop(reader_of)),
        ("ContinuousBatchProcessor", "update_batch", _update_batch),
        ("OutputRouter", "deliver", _deliver),
        ("OutputRouter", "deliver_batch", _deliver_batch),
        ("OutputRouter", "fail_and_deliver", _fail_and_deliver),
        ("RequestState", "__post_init__", _post_init),
        ("Scheduler", "clear_cancelled_requests", _clear_cancelled),
        ("OffloadingManager", "offload_requests", _offload),
    ]


def _reader_source(owner_of: Callable[[object], Owner | None]) -> Callable[[Any], BatchReader | None]:
    def reader_of(manager: Any) -> BatchReader | None:
        found = _readers.get(manager)
        if found is not None and found.log.is_open:
            return found
        owner = owner_of(read_attribute(manager, "model"))
        if owner is None or not owner.is_open:
            return None
        with _lock:
            found = _readers.get(manager)
            if found is None or not found.log.is_open:
                found = _readers[manager] = BatchReader(owner)
                weakref.finalize(manager, _collected, found).atexit = False
        while _left:
            _left.popleft().log.wake()
        return found

    return reader_of


def _collected(found: BatchReader) -> None:
    """A manager has been collected. No lock is taken here, as the thread may hold it: the next manager, or a flush, has the log read."""
    found.log.close()
    _left.append(found)


def _close(owner: Owner) -> None:
    with _lock:
        found = [one for one in _readers.values() if one.owner is owner]
    for one in found:
        one.log.close()
        one.read()


# ------------------------------------------------------------------------------------------------------ the caller's thread
def _around_add_request(reader_of: Callable[[Any], BatchReader | None]) -> Any:
    def add_request(original: Any, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arriving: tuple[BatchReader, BatchedRequest] | None = None
        with contain("start of a batched request"):
            arriving = _begin(reader_of(manager), manager, args, kwargs)
        if arriving is None:
            return original(*args, **kwargs)
        before, _here.arriving = _here.arriving, arriving
        try:
            request_id = original(*args, **kwargs)
        except BaseException as error:
            with contain("end of a batched request"):
                _refuse(arriving, _failure(arriving[0], error))
            raise
        finally:
            _here.arriving = before
        with contain("start of a batched request"):
            if not arriving[1].arrived:
                _refuse(arriving, Failure("_OTHER", "the manager takes no requests any more", ""))
        return request_id

    return add_request


def _begin(
    found: BatchReader | None, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[BatchReader, BatchedRequest] | None:
    if found is None or not read_attribute(manager, "is_tp_driver", True):
        return None
    if found.count >= MOST_OPEN:
        warn_once("more than %d requests wait in continuous batching; those beyond are not recorded", MOST_OPEN)
        return None
    chat = chat_of_ids(args[0] if args else kwargs.get("input_ids"))
    request = start_request(found.owner, manager.generation_config, chat, kwargs)
    if request is None:
        return None
    found.begun(request)
    return found, request


def _failure(found: BatchReader, error: BaseException) -> Failure:
    return failure_of(error, content=found.log.content)


def _refuse(arriving: tuple[BatchReader, BatchedRequest], failure: Failure) -> None:
    found, request = arriving
    found.log.add(Refused(request, found.log.now(), failure))
    found.log.wake()


def _post_init(original: Any, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = original(*args, **kwargs)
    arriving = _here.arriving
    if arriving is not None and not arriving[1].arrived:
        with contain("start of a batched request"):
            # Read now: the loop changes it.
            arriving[1].arrive(state)
            arriving[0].log.entries.append(Arrived(arriving[1]))
    return result


# -------------------------------------------------------------------------------------------------------- the loop's thread
def _around_loop(reader_of: Callable[[Any], BatchReader | None]) -> Any:
    def run(original: Any, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with contain("continuous batching"):
            found = reader_of(manager)
            _here.log = None if found is None else found.log
        try:
            return original(*args, **kwargs)
        finally:
            log, _here.log = _here.log, None
            if log is not None:
                with contain("continuous batching"):
                    log.rest()

    return run


def _around_turn(reader_of: Callable[[Any], BatchReader | None]) -> Any:
    def turn(original: Any, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        log: BatchLog | None = None
        processor = before = None
        with contain("continuous batching"):
            found = reader_of(manager)
            _here.log = log = None if found is None else found.log
            if log is not None:
                before = manager.current_batch
                processor = args[0] if args else kwargs["batch_processor"]
                log.began = log.now()
        result = original(*args, **kwargs)
        if log is not None and processor is not None:
            with contain("continuous batching"):
                if manager.current_batch != before:
                    log.launched(ahead=processor.use_async_batching)
                elif log.busy:
                    log.rest(_blocks(processor.cache))
        return result

    return turn


def _update_batch(original: Any, processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    log = _here.log
    if log is None or not log.is_open:
        return original(*args, **kwargs)
    states: Any = ()
    blocks: tuple[int, int] | None = None
    start = log.began
    with contain("step of a batch"):
        inputs = processor.inputs_and_outputs
        if processor.use_async_batching:
            start = log.starts.popleft() if log.starts else start
            # Requests that have ended or were preempted since the launch: what it has computed for them is dropped.
            states = [
                one for one in inputs.io_pairs[inputs.current_pair].host_io.requests_in_batch if one.state._status.name not in _SKIPPED
            ]
        else:
            states = inputs.requests_in_batch
        blocks = _blocks(processor.cache)
    outputs: list[Any] = []
    log.outputs = outputs
    try:
        return original(*args, **kwargs)
    finally:
        log.outputs = None
        with contain("step of a batch"):
            if states:
                log.ran(Ran(start, log.now(), states, outputs, len(processor.scheduler.waiting_requests), blocks))
            elif outputs:
                log.add(Delivered(log.now(), outputs))


_SKIPPED = frozenset({"FINISHED", "PENDING"})


def _blocks(cache: Any) -> tuple[int, int]:
    """Blocks of the paged cache in use, and all; a block has the keys and values of all layers for a page of positions."""
    number: int = cache.num_blocks
    size = cache.num_sectors * cache.bytes_per_sector
    return (number - int(cache.compute_free_capacity(relative=False)) * number // size if size else 0), number


def _deliver(original: Any, router: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _note((args[0] if args else kwargs.get("output"),))
    return original(*args, **kwargs)


def _deliver_batch(original: Any, router: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _note(args[0] if args else kwargs.get("outputs"))
    return original(*args, **kwargs)


def _note(outputs: Any) -> None:
    """Note the requests that have ended, before their callers can know."""
    log = _here.log
    if log is None or not log.is_open:
        return
    with contain("end of a batched request"):
        ended = [output for output in outputs if output.is_finished()]
        if not ended:
            return
        if log.outputs is not None:
            log.outputs.extend(ended)
        else:
            log.add(Delivered(log.now(), ended))


def _fail_and_deliver(original: Any, router: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    log = _here.log
    if log is not None and log.is_open:
        with contain("end of a batched request"):
            given = dict(zip(("state", "error"), args, strict=False)) | kwargs
            log.entries.append(Failed(given["state"].request_id, log.failure_of(given["error"])))
    return original(*args, **kwargs)


def _clear_cancelled(original: Any, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    states = original(*args, **kwargs)
    log = _here.log
    if states and log is not None and log.is_open:
        with contain("end of a batched request"):
            log.add(Cancelled(log.now(), [state.request_id for state in states]))
            log.wake()
    return states


def _offload(original: Any, offloading: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    log = _here.log
    if log is None or not log.is_open:
        return original(*args, **kwargs)
    active: set[str] = set()
    with contain("preempted requests"):
        active = set(offloading.scheduler.active_requests)
    result = original(*args, **kwargs)
    with contain("preempted requests"):
        queued = active.intersection(offloading.scheduler.waiting_requests)
        if queued:
            log.add(Preempted([*queued]))
    return result
