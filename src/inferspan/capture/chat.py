"""Facts of the operation, never guessed: prompts that a chat template has made, and the library that runs a model.

While a model is instrumented, tokenizers note what ``apply_chat_template`` returns: tensors by identity, also after ``BatchEncoding.to``,
and texts and lists of ids by their hash. Where a pipeline calls ``generate()``, its frame on the stack has the
messages. A prompt that was changed in between is no known chat.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from inferspan.guard import contain

from .call import current
from .patching import ClassMethods

__all__ = ["chat_of", "chat_of_ids", "embeds", "watch_templates"]

Chat = tuple[Any, ...]
"""Role dicts, or lists of them for a batch."""
MOST_TENSORS, MOST_TEXTS, MOST_LISTS, MOST_FRAMES = 256, 64, 1024, 40
_tensors: dict[int, tuple[weakref.ref[Any], Chat]] = {}
_texts: OrderedDict[int, Chat] = OrderedDict()
_lists: OrderedDict[int, Chat] = OrderedDict()
"""Chats by the hash of their ids, as continuous batching takes them."""
_capturing: set[object] = set()
"""One object for each instrumented model whose content is captured; without any, messages are not kept."""
_UNKNOWN: Chat = (None,)
"""Stands for messages that were not kept."""


def _note_tensor(value: Any, chat: Chat) -> None:
    if type(value) is not Tensor or len(_tensors) >= MOST_TENSORS:
        return
    key = id(value)
    _tensors[key] = weakref.ref(value, lambda _: _tensors.pop(key, None)), chat


def _known(value: Any) -> Chat | None:
    found = _tensors.get(id(value)) if isinstance(value, Tensor) else None
    return found[1] if found is not None and found[0]() is value else None


def _note_list(ids: Any, chat: Chat) -> None:
    """Remember ids, or those of several chats."""
    if not isinstance(ids, list) or not ids:
        return
    if isinstance(ids[0], list):
        for row, one in zip(ids, chat, strict=False):
            _note_list(row, one if isinstance(one, tuple) else (one,))
    elif isinstance(ids[0], int):
        while len(_lists) >= MOST_LISTS:
            _lists.popitem(last=False)
        _lists[hash(tuple(ids))] = chat


def _note(rendered: Any, chat: Chat) -> None:
    """Remember the result of a template: a text, a tensor, ids in a list, several of them, or a mapping with tensors or ids."""
    if isinstance(rendered, str):
        while len(_texts) >= MOST_TEXTS:
            _texts.popitem(last=False)
        _texts[hash(rendered)] = chat
    elif isinstance(rendered, Tensor):
        _note_tensor(rendered, chat)
    elif isinstance(rendered, Mapping):
        _note_tensor(rendered.get("input_ids"), chat)
        _note_list(rendered.get("input_ids"), chat)
    elif isinstance(rendered, list) and rendered and all(isinstance(text, str) for text in rendered):
        for text, one in zip(rendered, chat, strict=False):
            _note(text, one if isinstance(one, tuple) else (one,))
    else:
        _note_list(rendered, chat)


def _copied(conversation: Any) -> Chat:
    """The messages as they are now: the program may go on with the same list."""
    if not isinstance(conversation, list | tuple):
        conversation = getattr(conversation, "messages", ())
    return tuple(dict(part) if isinstance(part, Mapping) else _copied(part) for part in conversation)


def _length(conversation: Any) -> int:
    return len(conversation) if isinstance(conversation, list | tuple) else 0


def _around_template(original: Any, tokenizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rendered = original(*args, **kwargs)
    with contain("chat template"):
        conversation = args[0] if args else kwargs.get("conversation")
        _note(rendered, _copied(conversation) if _capturing else _UNKNOWN * max(MOST_TEXTS, _length(conversation)))
    return rendered


def _around_tokenizing(original: Any, tokenizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    encoded = original(*args, **kwargs)
    call = current.call
    if call is not None:
        with contain("tokens of a request"):
            call.note_encoded(encoded, kwargs)
    if _texts:
        with contain("chat template"):
            text = args[0] if args else kwargs.get("text")
            texts = [text] if isinstance(text, str) else text if isinstance(text, list) else []
            chats = [chat for one in texts if isinstance(one, str) and (chat := _texts.get(hash(one))) is not None]
            if chats and len(chats) == len(texts) and isinstance(encoded, Mapping):
                _note(encoded, chats[0] if len(chats) == 1 else tuple(chats))
    return encoded


def _around_move(original: Any, encoding: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    chat = None
    with contain("chat template"):
        chat = _known(encoding.get("input_ids")) if _tensors else None
    moved = original(*args, **kwargs)
    if chat is not None:
        with contain("chat template"):
            _note_tensor(moved.get("input_ids"), chat)
    return moved


_WATCHED = (
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase", "apply_chat_template", _around_template),
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase", "__call__", _around_tokenizing),
    ("transformers.tokenization_utils_base", "BatchEncoding", "to", _around_move),
    ("transformers.processing_utils", "ProcessorMixin", "apply_chat_template", _around_template),
)


def watch_templates(methods: ClassMethods, *, content: bool) -> Iterable[Callable[[], None]]:
    """Wrap the methods of transformers, where it is loaded; gives what undoes it.

    Args:
        methods: the wrapped methods that all models share.
        content: whether messages are captured.
    """
    if content:
        user = object()
        _capturing.add(user)
        yield lambda: _release(user)
    for module, kind, name, around in _WATCHED:
        owner = getattr(sys.modules.get(module), kind, None)
        if owner is not None and callable(getattr(owner, name, None)):
            yield methods.acquire(owner, name, around)


def _release(user: object) -> None:
    _capturing.discard(user)
    if not _capturing:
        _texts.clear()
        _lists.clear()
        _tensors.clear()


def _classes(*places: str) -> tuple[type, ...]:
    found = []
    for place in places:
        module, _, name = place.rpartition(".")
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            found.append(kind)
    return tuple(found)


def _callers(kinds: tuple[type, ...], method: str) -> Iterable[tuple[Any, Mapping[str, Any]]]:
    """The objects of some classes whose method is running on this thread, innermost first, with the variables of the method."""
    frame = sys._getframe(1) if kinds else None
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        if frame.f_code.co_name == method:
            variables = frame.f_locals
            if isinstance(variables.get("self"), kinds):
                yield variables["self"], variables
        frame = frame.f_back


def _chat_classes() -> tuple[type, ...]:
    return _classes("transformers.utils.chat_template_utils.Chat") or _classes(
        "transformers.pipelines.text_generation.Chat", "transformers.pipelines.image_text_to_text.Chat"
    )


def chat_of(model: Any, *prompts: Any) -> Chat | None:
    """The messages of a ``generate()`` whose prompt is a chat; ``None`` if it is none, or if that is not known.

    Args:
        model: the model whose ``generate()`` it is.
        prompts: the tensors that were passed as prompt, or ``None``.
    """
    with contain("chat template"):
        for prompt in prompts:
            chat = _known(prompt)
            if chat is not None:
                return chat
        kinds = _chat_classes()
        for pipeline, variables in _callers(_classes("transformers.pipelines.base.Pipeline"), "_forward"):
            given = variables.get("prompt_text")
            chats = given if isinstance(given, list) else [given]
            if pipeline.model is model and chats and all(isinstance(one, kinds) for one in chats):
                return _copied(chats[0] if len(chats) == 1 else chats)
    return None


def chat_of_ids(ids: Any) -> Chat | None:
    """The messages of a prompt that is a list of ids; ``None`` if it is no chat, or if that is not known."""
    with contain("chat template"):
        return _lists.get(hash(tuple(ids))) if _lists and isinstance(ids, list | tuple) else None
    return None


_EMBEDDING = (
    "sentence_transformers",
    "transformers.pipelines.feature_extraction",
    "transformers.pipelines.image_feature_extraction",
)
"""Modules whose classes make embeddings."""


def embeds(model: Any) -> bool:
    """Whether a plain forward pass of ``model`` is that of a pipeline or library that makes embeddings."""
    if sys.modules.keys().isdisjoint(_EMBEDDING):
        return False
    with contain("caller of a forward pass"):
        pipelines = _classes(
            "transformers.pipelines.feature_extraction.FeatureExtractionPipeline",
            "transformers.pipelines.image_feature_extraction.ImageFeatureExtractionPipeline",
        )
        if any(pipeline.model is model for pipeline, _ in _callers(pipelines, "_forward")):
            return True
        return any(True for _ in _callers(_classes("sentence_transformers.SentenceTransformer"), "encode"))
    return False
