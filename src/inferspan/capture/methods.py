"""Methods of a model besides ``forward`` and ``generate`` whose calls are requests: features, an autoencoder's two halves, speech.

A method is wrapped on the model's class, as ``generate()`` is. Forward passes of the model inside it are its modules' detail, and a method
that runs inside another request of the model is part of that request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import jit, nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import leave_frame
from inferspan.guard import read_attribute
from inferspan.settings import SettingsError

from .forward import ForwardCall, start_forward
from .owner import OpenPass, Owner
from .patching import ClassMethods, Undo
from .root.call import RequestCall

__all__ = ["attach_methods", "chosen_methods"]

KNOWN = ("get_text_features", "get_image_features", "get_audio_features", "get_video_features", "generate_speech")
"""Methods of transformers that do a request's work without ``forward()`` or ``generate()``."""
KNOWN_OF_DIFFUSERS = ("encode", "decode")
_NEVER = frozenset({"forward", "generate", "compile"})


def chosen_methods(model: nn.Module, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the methods whose calls are requests.

    Args:
        model: the instrumented model.
        wanted: the setting ``methods``; ``None`` for the known ones that the class has.

    Raises:
        SettingsError: a name that is wanted is no method of the model, or one that is observed anyway.
    """
    kind = type(model)
    if wanted is None:
        autoencoder = kind.__module__.startswith("diffusers.") and all(callable(getattr(kind, name, None)) for name in KNOWN_OF_DIFFUSERS)
        return tuple(name for name in KNOWN + (KNOWN_OF_DIFFUSERS if autoencoder else ()) if callable(getattr(kind, name, None)))
    for name in wanted:
        if name in _NEVER or name.startswith("__"):
            raise SettingsError(f"inferspan setting 'methods': {name!r} cannot be named, forward and generate are always seen")
        if issubclass(type(model), jit.ScriptModule):
            raise SettingsError(f"inferspan setting 'methods': {name!r} of a scripted model cannot be seen, its methods are not Python")
        if not callable(read_attribute(model, name)):
            raise SettingsError(f"inferspan setting 'methods': {kind.__name__} has no method {name!r}")
    return tuple(wanted)


def attach_methods(
    owner_of: Callable[[object], Owner | None], model: nn.Module, names: tuple[str, ...], classes: ClassMethods, undo: Undo
) -> None:
    """Wrap the methods, on the instance where they are its own.

    Args:
        owner_of: finds the instrumentation of a model, if it has one.
        model: the instrumented model.
        names: of its methods.
        classes: the wrapped methods of classes.
        undo: where the way back is put.
    """
    for name in names:
        around = _around(owner_of, name)
        if name in model.__dict__ or callable(getattr(type(model), name, None)):
            undo.push(classes.wrap(model, name, around))


def _around(owner_of: Callable[[object], Owner | None], name: str) -> Any:
    def method(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_dynamo_compiling():
            return original(*args, **kwargs)
        owner = owner_of(model)
        if owner is None or owner.model is not model or name not in owner.methods:
            return original(*args, **kwargs)
        return MethodCall(owner, name, original)(*args, **kwargs)

    return method


class MethodCall(RequestCall):
    """One call of a method, as a request.

    Args:
        owner: the instrumentation of the model.
        name: of the method.
        original: the method, bound to the model.
    """

    __slots__ = ("_name", "_original")

    def __init__(self, owner: Owner, name: str, original: Callable[..., Any]) -> None:
        super().__init__(owner)
        self._name = name
        self._original = original

    @leave_frame
    def _function(self, caller: Any) -> Callable[..., Any]:
        return self._original

    def _start(
        self, owner: Owner, opened: OpenPass, args: tuple[Any, ...], kwargs: dict[str, Any], evaluated: bool
    ) -> ForwardCall | None:
        return start_forward(owner, args, kwargs, compiled=evaluated, opened=opened, method=self._name)

    def _enter_again(
        self, call: ForwardCall, opened: OpenPass, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ForwardCall | None:
        # Inside a request of the model it is a part of that.
        return None
