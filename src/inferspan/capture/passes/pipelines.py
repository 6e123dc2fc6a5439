"""Pipelines of transformers: one request for each call of the user's, whatever batches and chunks it is made of.

``Pipeline.__call__`` is wrapped on the class, for all instrumented models together. A call that runs ``generate()`` once is that request.
Where the pipeline was given a generator or a data set and returns an iterator, each item for which the model has to run is a request.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from inferspan import semconv
from inferspan.capture.compile.state import is_compiling
from inferspan.capture.generate.modalities import makes_media
from inferspan.capture.owner import Owner
from inferspan.guard import ask, contain, read_attribute
from inferspan.records import AttributeValue

from .generations import Generations
from .several import Span, is_inside

__all__ = ["BASE", "ITERATORS", "LISTS", "SPEAKING", "Pipelines", "pipeline_task"]

BASE, ITERATORS = "transformers.pipelines.base", "transformers.pipelines.pt_utils"
LISTS = ("transformers.pipelines.zero_shot_object_detection", "ZeroShotObjectDetectionPipeline")
"""Module and class of pipelines that give a list of inputs to themselves as a generator."""
SPEAKING = ("text-to-audio", "text-to-speech")
"""Tasks whose result is sound, whatever their model says of itself."""
_EMBED = ("feature-extraction", "image-feature-extraction")
_MEDIA = ("automatic-speech-recognition", "document-question-answering", "image-to-text", "visual-question-answering", *SPEAKING)
_MIXED = ("image-text-to-text", "any-to-any")
"""Tasks whose inputs may be words only."""
_FEATURES = ("images", "image", "videos", "audio")
_streams: weakref.WeakKeyDictionary[Any, tuple[str | None, Callable[[], Span | Generations | None]]] = weakref.WeakKeyDictionary()
"""Iterators that pipelines have returned, with the task and what makes the request of an item."""


class _Running(threading.local):
    task: str | None = None
    """Of the pipeline that runs on the thread."""
    request: Span | Generations | None = None
    """Of the item that is being made, to be opened when the model has to run for it."""


_running = _Running()


def pipeline_task() -> str | None:
    """The task of the pipeline that runs on this thread."""
    return _running.task


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _is_chat(value: Any) -> bool:
    """Whether one input is a chat: role dicts, or transformers' object around them."""
    return (isinstance(value, list | tuple) and bool(value) and _is_message(value[0])) or type(value).__name__ == "Chat"


def _chunked(pipeline: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether one input may become several chunks for ``generate()``; of those pipelines, speech recognition alone makes them."""
    return bool(kwargs.get("chunk_length_s", pipeline._preprocess_params.get("chunk_length_s")))


def _runs_once(pipeline: Any, inputs: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the call runs ``generate()`` once."""
    # A vocoder is another model that runs after the first one.
    if _chunked(pipeline, kwargs) or read_attribute(pipeline, "vocoder") is not None:
        return False
    if not isinstance(inputs, list) or _is_chat(inputs):
        return True
    return len(inputs) <= (kwargs.get("batch_size") or pipeline._batch_size or 1)


def _generates(pipeline: Any) -> bool:
    return bool(read_attribute(pipeline, "_pipeline_calls_generate", False)) and bool(ask(pipeline.model, "can_generate"))


def _operation(owner: Owner, pipeline: Any, inputs: Any) -> str:
    """The operation of a request around several ``generate()``, by the rules for one of them."""
    if owner.settings.operation:
        return owner.settings.operation
    if isinstance(inputs, list) and inputs and all(map(_is_chat, inputs)):
        return semconv.OPERATION_CHAT
    media = read_attribute(pipeline, "task") in _MEDIA or makes_media(pipeline.model)
    if read_attribute(pipeline, "task") in _MIXED:
        items = inputs if isinstance(inputs, list) else [inputs]
        media = any(isinstance(item, Mapping) and any(item.get(kind) is not None for kind in _FEATURES) for item in items)
    return semconv.OPERATION_GENERATE_CONTENT if media else semconv.OPERATION_TEXT_COMPLETION


def _facts(pipeline: Any) -> dict[str, AttributeValue]:
    task = read_attribute(pipeline, "task")
    return {semconv.PIPELINE_TASK: task} if isinstance(task, str) and task else {}


def _request(owner: Owner, pipeline: Any, inputs: Any, kwargs: Mapping[str, Any], *, lazy: bool) -> Span | Generations | None:
    """The request of a call, or of an item of a stream; ``None`` where one ``generate()`` is that."""
    if _generates(pipeline):
        once = _runs_once(pipeline, None if lazy else inputs, kwargs)
        return None if once else Generations(owner, _operation(owner, pipeline, inputs), _facts(pipeline))
    wanted = owner.settings.operation
    embeds = wanted == semconv.OPERATION_EMBEDDINGS or (wanted is None and read_attribute(pipeline, "task") in _EMBED)
    return Span(owner, semconv.OPERATION_EMBEDDINGS if embeds else None, _facts(pipeline))


class Pipelines:
    """The wrappers; ``owner_of`` finds the instrumentation of a model, if it has one."""

    def __init__(self, owner_of: Callable[[object], Owner | None]) -> None:
        self._owner_of = owner_of

    def call(self, original: Any, pipeline: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Around ``Pipeline.__call__``."""
        request: Span | Generations | None = None
        owner: Owner | None = None
        lazy = False
        with contain("call of a pipeline"):
            owner = None if is_compiling() else self._owner_of(pipeline.model)
            if owner is not None and not is_inside(owner):
                inputs = args[0] if args else kwargs.get("inputs")
                lazy = _is_lazy(inputs)
                if not lazy:
                    request = _request(owner, pipeline, inputs, kwargs, lazy=False)
        if owner is None:
            return original(*args, **kwargs)
        outer, _running.task = _running.task, read_attribute(pipeline, "task")
        try:
            result = original(*args, **kwargs) if request is None else request.run(original, args, kwargs)
        finally:
            _running.task = outer
        if lazy:
            with contain("call of a pipeline"):
                if type(result).__name__ == "PipelineIterator":
                    _streams[result] = read_attribute(pipeline, "task"), self._later(pipeline, kwargs)
        return result

    def _later(self, pipeline: Any, kwargs: dict[str, Any]) -> Callable[[], Span | Generations | None]:
        """What makes the request of an item: the model may be another one by then, or not be instrumented any more."""

        def made() -> Span | Generations | None:
            owner = None if is_compiling() else self._owner_of(pipeline.model)
            return None if owner is None or is_inside(owner) else _request(owner, pipeline, None, kwargs, lazy=True)

        return made

    @staticmethod
    def next(original: Any, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Around ``PipelineIterator.__next__``: an item of a stream is being made."""
        task, made = _streams.get(iterator, (None, None))
        if made is None:
            return original(*args, **kwargs)
        request: Span | Generations | None = None
        with contain("item of a pipeline"):
            request = made()
        outer = _running.task, _running.request
        _running.task, _running.request = task, request
        try:
            return original(*args, **kwargs) if request is None else request.run(original, args, kwargs, at_once=False)
        finally:
            _running.task, _running.request = outer

    @staticmethod
    def forward(original: Any, pipeline: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Around ``Pipeline.forward``: the model has to run for the item."""
        if _running.request is not None:
            _running.request.open()
        return original(*args, **kwargs)


def _is_lazy(inputs: Any) -> bool:
    """Whether the pipeline returns an iterator instead of results."""
    from types import GeneratorType

    kind = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    return isinstance(inputs, GeneratorType) or (kind is not None and isinstance(inputs, kind))
