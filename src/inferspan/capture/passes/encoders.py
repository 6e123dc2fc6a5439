"""Encoders and rerankers of sentence-transformers: ``encode()`` and ``predict()`` are one request each, whatever batches they run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from inferspan import semconv
from inferspan.capture.compile.state import is_compiling
from inferspan.capture.owner import Owner
from inferspan.capture.patching import ClassMethods
from inferspan.guard import contain
from inferspan.records import AttributeValue

from .several import Span

__all__ = ["watch_encoders"]

_BITS = ("binary", "ubinary")


def _classes(*names: str) -> tuple[type, ...]:
    library = sys.modules.get("sentence_transformers")
    return tuple(kind for name in names if isinstance(kind := getattr(library, name, None), type))


def _dimension(result: Any, *, packed: bool) -> int | None:
    """Entries of one embedding that the caller gets, of an array, a tensor or a list of either."""
    one = result[0] if isinstance(result, list) and result else result
    if isinstance(one, Mapping):
        one = one.get("sentence_embedding")
    shape = getattr(one, "shape", None)
    if not shape:
        return None
    return int(shape[-1]) * (8 if packed else 1)


def _embedded(kwargs: Mapping[str, Any]) -> Callable[[Any], Mapping[str, AttributeValue]]:
    packed = kwargs.get("precision") in _BITS

    def facts(result: Any) -> Mapping[str, AttributeValue]:
        dimension = _dimension(result, packed=packed)
        return {} if not dimension else {semconv.EMBEDDINGS_DIMENSION: dimension}

    return facts


def _around(owner_of: Callable[[object], Owner | None], method: str) -> Any:
    def run(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        span: Span | None = None
        with contain(f"start of {method}()"):
            owner = None if is_compiling() else owner_of(model)
            if owner is not None and owner.model is model:
                if method == "encode":
                    operation = owner.settings.operation or semconv.OPERATION_EMBEDDINGS
                    embeds = operation == semconv.OPERATION_EMBEDDINGS
                    span = Span(owner, operation if embeds else None, {}, _embedded(kwargs))
                else:
                    span = Span(owner, None, {semconv.METHOD: method})
        return original(*args, **kwargs) if span is None else span.run(original, args, kwargs)

    return run


def watch_encoders(
    owner_of: Callable[[object], Owner | None], model: nn.Module, methods: ClassMethods
) -> Iterable[Callable[[], None]]:
    """Wrap the method of a model of sentence-transformers, if it is one; gives what undoes it.

    Args:
        owner_of: finds the instrumentation of a model, if it has one.
        model: the instrumented model.
        methods: the wrapped methods that all models share.
    """
    kinds = {
        "encode": _classes("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder"),
        "predict": _classes("CrossEncoder"),
    }
    for method, classes in kinds.items():
        if issubclass(type(model), classes) and callable(getattr(type(model), method, None)):
            yield methods.acquire(type(model), method, _around(owner_of, method))
