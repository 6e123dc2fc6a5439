"""``instrument_loading()``: every ``from_pretrained()`` of the known libraries becomes a span, from every caller at any time.

In: classes of transformers, diffusers and sentence-transformers, once the program has imported them. Out: spans. Zero code does the same
by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType, TracebackType
from typing import Any

from inferspan import semconv
from inferspan.capture.loading.load import Loads
from inferspan.capture.passes.imports import ImportWatch
from inferspan.capture.patching import Undo, replace, wrap_class_method
from inferspan.settings import Settings

__all__ = ["LoadingHandle", "instrument_loading"]

LOADERS = (
    ("transformers.modeling_utils", "PreTrainedModel", "model"),
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase", "tokenizer"),
    ("transformers.processing_utils", "ProcessorMixin", "processor"),
    ("diffusers.models.modeling_utils", "ModelMixin", "model"),
    ("diffusers.pipelines.pipeline_utils", "DiffusionPipeline", "pipeline"),
)
"""Classes with a ``from_pretrained()`` of their own."""
BUILDERS = (
    ("sentence_transformers.base.model", "BaseModel", "model"),
    # Before its version 6.
    ("sentence_transformers.SentenceTransformer", "SentenceTransformer", "model"),
    ("sentence_transformers.cross_encoder.CrossEncoder", "CrossEncoder", "model"),
)
"""Classes that load a model when they are built from a name."""
PARTS = (
    ("transformers.modeling_utils", "", "_get_resolved_checkpoint_files", semconv.SPAN_RESOLVE),
    ("transformers.modeling_utils", "PreTrainedModel", "_load_pretrained_model", semconv.SPAN_READ),
    ("transformers.modeling_utils", "", "accelerate_dispatch", semconv.SPAN_DISPATCH),
    # Before version 5 of transformers.
    ("transformers.modeling_utils", "", "dispatch_model", semconv.SPAN_DISPATCH),
    ("diffusers.models.modeling_utils", "", "_get_model_file", semconv.SPAN_RESOLVE),
    ("diffusers.models.modeling_utils", "", "_get_checkpoint_shard_files", semconv.SPAN_RESOLVE),
    ("diffusers.models.modeling_utils", "ModelMixin", "_load_pretrained_model", semconv.SPAN_READ),
    ("diffusers.models.modeling_utils", "", "dispatch_model", semconv.SPAN_DISPATCH),
)
"""Functions that do a part of a load, in a module or a class of it."""
_lock = threading.RLock()
_newest: list[LoadingHandle] = []
"""The last one records: a load is one span, however many there are."""


class LoadingHandle:
    """Keeps loading observed until ``uninstrument()``; a context manager as well.

    Args:
        loads: records them.
    """

    def __init__(self, loads: Loads) -> None:
        self._loads = loads
        self._watch = ImportWatch()
        self._undo = Undo()

    def install(self) -> LoadingHandle:
        """Begin to observe what is imported, and the rest once it is."""
        with _lock:
            _newest.append(self)
        self._watch.install()
        for module, kind, what in LOADERS:
            self._watch.after(module, partial(self._loader, kind, what))
        for module, kind, what in BUILDERS:
            self._watch.after(module, partial(self._builder, kind, what))
        for module, kind, name, part in PARTS:
            self._watch.after(module, partial(self._part, kind, name, part))
        return self

    def uninstrument(self) -> None:
        """Take everything off again; may be called twice, and while something is being loaded."""
        with _lock:
            if self in _newest:
                _newest.remove(self)
        self._loads.open = False
        self._watch.remove()
        self._undo.close()

    def __enter__(self) -> LoadingHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.uninstrument()

    @property
    def _records(self) -> bool:
        return bool(_newest) and _newest[-1] is self

    # ------------------------------------------------------------------------------------------------------------- patches
    def _loader(self, name: str, what: str, module: ModuleType) -> None:
        kind = getattr(module, name, None)
        if "from_pretrained" not in getattr(kind, "__dict__", ()):
            return

        def load(original: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not self._records:
                return original(*args, **kwargs)
            source = args[0] if args else kwargs.get("pretrained_model_name_or_path")
            return self._loads.load(what, source, original, args, kwargs)

        self._undo.push(replace(kind, "from_pretrained", load))

    def _builder(self, name: str, what: str, module: ModuleType) -> None:
        kind = getattr(module, name, None)
        if not isinstance(kind, type):
            return

        def build(original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            source = args[0] if args else kwargs.get("model_name_or_path") or kwargs.get("model_name")
            if source is None or not self._records:
                return original(*args, **kwargs)
            # What is built is the model: ``__init__`` returns nothing.
            built = self._loads.load(what, source, lambda *given, **named: (original(*given, **named), model)[1], args, kwargs)
            return None if built is model else built

        self._undo.push(wrap_class_method(kind, "__init__", build))

    def _part(self, kind: str, name: str, part: str, module: ModuleType) -> None:
        owner: Any = getattr(module, kind, None) if kind else module
        if name not in getattr(owner, "__dict__", ()):
            return

        def run(original: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._loads.part(part, original, args, kwargs) if self._records else original(*args, **kwargs)

        self._undo.push(replace(owner, name, run))


def instrument_loading(
    settings: Settings | None = None, tracer_provider: Any = None, auto_configure: bool = True, **settings_overrides: Any
) -> LoadingHandle:
    """Make every ``from_pretrained()`` of this process a span ``load``, with the facts of its checkpoint.

    Models, tokenizers and processors of transformers, models and pipelines of diffusers, and models of sentence-transformers. Zero code
    does this by itself. Called twice, the last call's providers and settings count until its handle is taken off.

    Args:
        settings: options; default: resolved from environment, file and presets.
        tracer_provider: where spans go; default the global one, looked up at each load.
        auto_configure: set up providers from the ``OTEL_*`` variables if the program has set none and a destination is named.
        **settings_overrides: single settings, stronger than every other source.

    Returns:
        A handle; ``handle.uninstrument()`` takes it off.

    Raises:
        SettingsError: a setting is unknown or wrong, or the session file cannot be written.
    """
    from inferspan.composition import set_up_export

    resolved = Settings.resolve(settings_overrides) if settings is None else settings.override(settings_overrides)
    if not resolved.enabled:
        return LoadingHandle(Loads(_Late(tracer_provider, lambda: None), resolved))
    if auto_configure:
        set_up_export(resolved, (tracer_provider, None, None))
    return observe_loading(resolved, tracer_provider, lambda: None)


def observe_loading(settings: Settings, tracer_provider: Any, before: Callable[[], None]) -> LoadingHandle:
    """The same with settings that are there; ``before`` is called before each load."""
    return LoadingHandle(Loads(_Late(tracer_provider, before), settings)).install()


class _Late:
    """Loads as spans; the SDK is loaded by the first one."""

    def __init__(self, tracer_provider: Any, before: Callable[[], None]) -> None:
        self._tracer_provider = tracer_provider
        self._before = before
        self._spans: Any = None

    def start_load(self, kind: str, name: str | None, start_ns: int) -> Any:
        """See :class:`~inferspan.records.LoadRecorder`."""
        if self._spans is None:
            from inferspan.spans.loads import LoadSpans
            from inferspan.spans.sources import tracer_source

            self._spans = LoadSpans(tracer_source(self._tracer_provider, self._before))
        return self._spans.start_load(kind, name, start_ns)
