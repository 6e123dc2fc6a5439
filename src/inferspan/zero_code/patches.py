"""What is put on the classes of libraries once they have been imported: seeing models built, and their first calls.

In: classes of transformers, diffusers, torch, and those that ``include`` names. Out: calls of ``Candidates``. Construction, results and
exceptions are the program's own; everything comes off again.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from inferspan.capture.passes.imports import ImportWatch
from inferspan.capture.patching import ClassMethods, Undo, class_methods
from inferspan.guard import contain, read_attribute

from .candidates import Candidates
from .patterns import Patterns

__all__ = ["Patches"]

MODELS = (
    ("transformers.modeling_utils", "PreTrainedModel"),
    ("diffusers.models.modeling_utils", "ModelMixin"),
    ("sentence_transformers.base.model", "BaseModel"),
    # Before its version 6.
    ("sentence_transformers.SentenceTransformer", "SentenceTransformer"),
    ("sentence_transformers.cross_encoder.CrossEncoder", "CrossEncoder"),
)
"""Base classes of models that are observed without being named."""
CALLS = {"sentence_transformers.": ("encode", "predict")}
"""Methods by which models of a library are called, whatever their mode; by the beginning of the module's name."""
PIPELINES = (("diffusers.pipelines.pipeline_utils", "DiffusionPipeline", "register_modules"),)
"""Base classes of pipelines that are requests as a whole, each with the method in which their parts are put together."""
CALLERS = (
    ("transformers.pipelines.base", "Pipeline"),
    ("transformers.pipelines.zero_shot_object_detection", "ZeroShotObjectDetectionPipeline"),
)
"""Classes of pipelines that call one model, perhaps several times in what is one request."""
SERVER = "transformers.cli.serving.utils"
"""Module of ``transformers serve`` whose thread runs a model for the first time."""
TEMPLATES = ("transformers.tokenization_utils_base", "transformers.processing_utils")
"""Modules whose classes apply chat templates, perhaps before the model is called for the first time."""


class Patches:
    """The changes of zero code to classes of libraries.

    Args:
        candidates: receives the models and their calls.
        watch: runs functions after imports.
        include: patterns of classes that are observed beside those of the libraries.
        content: whether messages of chats are captured.
        methods: names of the methods that are requests, ``None`` for the known ones.
    """

    def __init__(self, candidates: Candidates, watch: ImportWatch, include: Patterns, *, content: bool, methods: Any) -> None:
        self._candidates = candidates
        self._watch = watch
        self._include = include
        self._content = content
        self._methods = methods
        self._classes = ClassMethods()
        self._undo = Undo()
        self._entered: set[tuple[type, str]] = set()
        self._templates: set[str] = set()

    def install(self) -> None:
        """Put them on what is imported, and on the rest once it is."""
        for module, name in MODELS:
            self._watch.after(module, partial(self._models, name))
        for module, name, method in PIPELINES:
            self._watch.after(module, partial(self._pipelines, name, method))
        self._watch.after(SERVER, self._serving)
        for module, name in CALLERS:
            self._watch.after(module, partial(self._callers, name))
        self._watch.after("transformers.generation.utils", self._generation)
        self._watch.after("torch._dynamo.eval_frame", self._optimized)
        if self._include:
            self._watch.after("torch.nn.modules.module", self._any_class)
        for module in TEMPLATES:
            self._watch.after(module, lambda _: self._chats())

    def remove(self) -> None:
        """Take them off."""
        self._undo.close()

    def forked(self) -> None:
        """Called in a forked child, where nobody is left to release the lock."""
        self._classes.forked()

    # ------------------------------------------------------------------------------------------------------- construction
    def _model_class(self, kind: type, *, named: bool = False) -> None:
        build = self._around_named if named else self._around_building
        self._wrap(kind, "__init__", build)
        # Copies and unpickled models are not built by ``__init__``.
        if callable(getattr(kind, "__setstate__", None)):
            self._wrap(kind, "__setstate__", build)
        if callable(getattr(kind, "compile", None)):
            self._wrap(kind, "compile", self._entry(kind, "compile", training=True))

    def _models(self, name: str, module: ModuleType) -> None:
        kind = getattr(module, name, None)
        if isinstance(kind, type):
            self._model_class(kind)

    def _pipelines(self, name: str, method: str, module: ModuleType) -> None:
        def put_together(original: Any, pipeline: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            result = original(*args, **kwargs)
            with contain("construction of a model"):
                self._entry_of(type(pipeline), "__call__", training=True)
            return result

        self._wrap(getattr(module, name), method, put_together)

    def _any_class(self, module: ModuleType) -> None:
        """Look at each class of a module that is defined from now on, and at those that are there, for a name in ``include``."""
        base: Any = module.Module
        if "__init_subclass__" not in base.__dict__:

            def __init_subclass__(cls: Any, /, **options: Any) -> None:
                super(base, cls).__init_subclass__(**options)
                self._included(cls)

            # First, for classes that another thread defines meanwhile.
            base.__init_subclass__ = classmethod(__init_subclass__)
            self._undo.push(lambda: delattr(base, "__init_subclass__"))
        waiting = [base]
        while waiting:
            for kind in waiting.pop().__subclasses__():
                waiting.append(kind)
                self._included(kind)

    def _included(self, kind: type) -> None:
        with contain("classes of include"):
            if self._include.match_class(kind) and (kind, "__init__") not in self._entered:
                self._entered.add((kind, "__init__"))
                self._model_class(kind, named=True)

    def _around_named(self, original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._include.match_class(type(model)):
            return self._around_building(original, model, args, kwargs)
        return original(*args, **kwargs)

    def _around_building(self, original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        if self._candidates.open and not self._candidates.knows(model):
            with contain("construction of a model"):
                self._candidates.add(model)
                self._enter(model)
        return result

    def _enter(self, model: Any) -> None:
        """Notice first calls of a model that are no forward passes."""
        kind = type(model)
        from inferspan.capture.methods import chosen_methods
        from inferspan.settings import SettingsError

        self._chats()
        if self._candidates.needs_call(model):
            self._entry_of(kind, "__call__")
        try:
            names = chosen_methods(model, self._methods)
        except SettingsError:  # it is said when the model is instrumented
            names = chosen_methods(model, None)
        for name in names:
            self._entry_of(kind, name)
        # Whisper and others have one of their own, which calls that of all models with other arguments.
        self._entry_of(kind, "generate", training=True)
        # Requests of continuous batching come before the first pass.
        self._entry_of(kind, "init_continuous_batching", training=True)
        for library, calls in CALLS.items():
            if any(base.__module__.startswith(library) for base in kind.__mro__):
                for name in calls:
                    self._entry_of(kind, name, training=True)

    # --------------------------------------------------------------------------------------------------------- first calls
    def _entry_of(self, kind: type, name: str, *, training: bool = False) -> None:
        if (kind, name) not in self._entered and callable(getattr(kind, name, None)):
            self._entered.add((kind, name))
            self._wrap(kind, name, self._entry(kind, name, training=training))

    def _generation(self, module: ModuleType) -> None:
        kind: Any = module.GenerationMixin
        settle = self._entry(kind, "generate", training=True)

        def generate(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # Built before zero code began.
            if self._candidates.open and not self._candidates.knows(model) and self._candidates.is_module(model):
                with contain("first call of a model"):
                    self._candidates.add(model)
            return settle(original, model, args, kwargs)

        self._wrap(kind, "generate", generate)

    def _entry(self, kind: type, name: str, *, training: bool = False) -> Any:
        def enter(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            settled, target = False, model if self._candidates.is_module(model) else self._parts(model)
            if self._candidates.waits(target) and not _is_compiling():
                # Called by a method of the same name, it is not what the program has called.
                outermost = name not in model.__dict__ and getattr(type(model), name, None) is kind.__dict__.get(name)
                with contain("first call of a model"):
                    settled = self._candidates.settle(target, training=training) and outermost
            # What has just been put on the class is around the method now.
            return getattr(model, name)(*args, **kwargs) if settled else original(*args, **kwargs)

        return enter

    def _callers(self, name: str, module: ModuleType) -> None:
        """Instrument the model of a pipeline before the call, which is the request, rather than in one of its batches."""
        kind: Any = getattr(module, name)

        def call(original: Any, pipeline: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            settled = False
            with contain("first call of a model"):
                model = read_attribute(pipeline, "model")
                settled = self._candidates.waits(model) and not _is_compiling() and self._candidates.settle(model)
            # What has just been put on the class is around the method now.
            return kind.__call__(pipeline, *args, **kwargs) if settled else original(*args, **kwargs)

        self._wrap(kind, "__call__", call)

    def _serving(self, module: ModuleType) -> None:
        from inferspan.capture.passes.serving import SUBMITS, THREAD, carried

        for name in SUBMITS:
            self._wrap(getattr(module, THREAD), name, carried)

    def _parts(self, pipeline: Any) -> Any:
        """The module that stands for a pipeline; it waits for its first call from now on, if nothing is decided about it."""
        with contain("first call of a model"):
            from inferspan.capture.diffusion.components import components_of

            parts = components_of(pipeline)
            if parts is not None and self._candidates.open and not self._candidates.knows(parts):
                self._candidates.add(parts)
            return parts
        return None

    def _optimized(self, module: ModuleType) -> None:
        """Instrument a model before ``torch.compile(model)`` sees it."""
        kind: Any = module.OptimizedModule

        def build(original: Any, optimized: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with contain("first call of a model"):
                self._candidates.settle(args[0] if args else kwargs.get("mod"), training=True)
            return original(*args, **kwargs)

        self._wrap(kind, "__init__", build)

    # --------------------------------------------------------------------------------------------------------------- chats
    def _chats(self) -> None:
        """Note what chat templates make, also before a model is instrumented."""
        new = [name for name in TEMPLATES if name not in self._templates and name in sys.modules]
        if not new or "inferspan.capture.root.first" not in sys.modules:
            return
        from inferspan.capture.chat import watch_templates

        self._templates.update(new)
        for undo in watch_templates(class_methods, content=self._content):
            self._undo.push(undo)

    def _wrap(self, kind: type, name: str, around: Any) -> None:
        self._undo.push(self._classes.acquire(kind, name, around))


def _is_compiling() -> bool:
    torch: Any = sys.modules.get("torch")
    return bool(torch.compiler.is_compiling())
