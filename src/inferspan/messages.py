"""Captured content as chat messages: prompts and outputs decoded, bounded, and written in the conventions' JSON schema.

In: a tokenizer and token ids, or role dicts of a chat. Out: ``Message`` records, their JSON, or lists and mappings. Used only when
content capture is on. Nothing here knows torch: ids are read through ``tolist``. A tokenizer may raise, which the caller contains; one
that cannot decode gives no messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from .records import Message

__all__ = ["LIMIT", "chat_messages", "input_messages", "output_messages", "structured", "to_json"]

LIMIT = 32 * 1024
"""Bytes that the value of one message attribute may have, encoded."""


class Ids(Protocol):
    """A tensor or array of whole numbers."""

    def tolist(self) -> Any:
        """Nested lists of the values."""


def _exportable(text: str) -> str:
    """Lone surrogates, which byte-level tokenizers can leave, cannot be encoded and would lose the whole batch of spans."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _cut(text: str, max_chars: int) -> str:
    text = _exportable(text)
    return text if len(text) <= max_chars else f"{text[:max_chars]}… [truncated {len(text) - max_chars} characters]"


def _decode(tokenizer: Any, ids: Sequence[int]) -> str | None:
    decode = getattr(tokenizer, "decode", None)
    text = decode(ids, skip_special_tokens=True) if callable(decode) else None
    return text if isinstance(text, str) else None


def _rows(ids: Ids) -> list[list[int]]:
    rows = ids.tolist()
    if not isinstance(rows, list) or not rows:
        return []
    if not isinstance(rows[0], list):
        rows = [rows]
    return rows if all(isinstance(token, int) for row in rows for token in row) else []


def input_messages(tokenizer: Any, input_ids: Ids | None, attention_mask: Ids | None, *, max_chars: int) -> list[Message]:
    """One user message for each row of the prompt.

    Args:
        tokenizer: anything with ``decode(ids, skip_special_tokens=True)``; None or anything else gives no messages.
        input_ids: ``[batch, length]`` or ``[length]``. Reading them may wait for the device.
        attention_mask: like ``input_ids``, 0 where there is padding; one of another shape is ignored.
        max_chars: longest text of a message.
    """
    if input_ids is None or not callable(getattr(tokenizer, "decode", None)):
        return []
    rows = _rows(input_ids)
    masks = _rows(attention_mask) if attention_mask is not None else []
    if [len(mask) for mask in masks] == [len(row) for row in rows]:
        rows = [[token for token, kept in zip(row, mask, strict=True) if kept] for row, mask in zip(rows, masks, strict=True)]
    texts = [_decode(tokenizer, row) for row in rows]
    return [Message("user", _cut(text, max_chars)) for text in texts if text is not None]


def output_messages(
    tokenizer: Any, rows: Sequence[Sequence[int]], finish_reasons: Sequence[str | None], *, max_chars: int
) -> list[Message]:
    """One assistant message for each generated sequence, with its finish reason if there is one.

    Args:
        tokenizer: as for ``input_messages``.
        rows: generated ids of each sequence, without prompt and padding.
        finish_reasons: one for each sequence; missing ones are left out.
        max_chars: longest text of a message.
    """
    result = []
    for index, row in enumerate(rows):
        text = _decode(tokenizer, list(row))
        if text is not None:
            reason = finish_reasons[index] if index < len(finish_reasons) else None
            result.append(Message("assistant", _cut(text, max_chars), reason))
    return result


def _content(content: object) -> str:
    """The text of a chat message's content: a string, or parts of which those that are not text are named only."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping):
            text = part.get("text")
            texts.append(text if isinstance(text, str) else f"[{part.get('type', 'part')}]")
    return "\n".join(texts)


def chat_messages(chat: Iterable[object], *, max_chars: int) -> list[Message]:
    """The messages of a chat given as role dicts; a batch of chats is joined, anything else in it is passed over.

    Args:
        chat: ``[{"role": ..., "content": text or parts}, ...]``.
        max_chars: longest text of a message.
    """
    result = []
    for message in chat:
        if isinstance(message, Mapping):
            role = message.get("role")
            result.append(Message(role if isinstance(role, str) else "user", _cut(_content(message.get("content")), max_chars)))
        elif isinstance(message, list | tuple):
            result.extend(chat_messages(message, max_chars=max_chars))
    return result


def _structure(message: Message, note: str | None = None) -> dict[str, Any]:
    parts = [{"type": "text", "content": text} for text in (_exportable(message.text), note) if text is not None]
    structure: dict[str, Any] = {"role": message.role, "parts": parts}
    if message.finish_reason is not None:
        structure["finish_reason"] = message.finish_reason
    return structure


def _size(text: str) -> int:
    return len(text.encode("utf-8"))


def _dump(structures: Any) -> str:
    return json.dumps(structures, ensure_ascii=False, separators=(",", ":"))


def _framed(size: int) -> int:
    """Bytes of a field of ``size`` bytes with its tag and length."""
    return 1 + (max(size, 1).bit_length() + 6) // 7 + size


def _packed(value: Any) -> int:
    """Bytes of an OTLP ``AnyValue``: a text, or lists and mappings of texts."""
    if isinstance(value, str):
        return _framed(_size(value))
    if isinstance(value, Mapping):
        return _framed(sum(_framed(_framed(_size(key)) + _framed(_packed(item))) for key, item in value.items()))
    return _framed(sum(_framed(_packed(item)) for item in value))


class _Encoding(NamedTuple):
    """How large messages become: ``one`` is the size of a message in its list, ``all`` that of a list from the sum of those."""

    one: Callable[[Mapping[str, Any]], int]
    all: Callable[[int], int]


# A message brings a comma, the first one two brackets instead.
_JSON = _Encoding(lambda structure: _size(_dump(structure)) + 1, lambda size: size + 1)
_OTLP = _Encoding(lambda structure: _framed(_packed(structure)), _framed)


def to_json(messages: Sequence[Message], *, limit: int = LIMIT) -> str:
    """Messages in the schema of ``gen_ai.input.messages`` and ``gen_ai.output.messages``, as a JSON text.

    Whole messages are dropped from the end until the JSON has at most ``limit`` bytes of UTF-8; a text part at the end of the last
    one that is left says how many. A first message that is too large by itself is cut.
    """
    return _dump(_fit(messages, limit, _JSON))


def structured(messages: Sequence[Message], *, limit: int = LIMIT) -> list[dict[str, Any]]:
    """The same as lists and mappings of texts; ``limit`` counts the bytes of the attribute's value in OTLP."""
    return _fit(messages, limit, _OTLP)


def _fit(messages: Sequence[Message], limit: int, encoding: _Encoding) -> list[dict[str, Any]]:
    whole = [_structure(message) for message in messages]
    # Sizes of the first 0, 1, 2, ... messages.
    sizes = list(accumulate(map(encoding.one, whole), initial=0))
    if not messages or encoding.all(sizes[-1]) <= limit:
        return whole
    for kept in range(len(messages) - 1, 0, -1):
        last = _structure(messages[kept - 1], f"[{len(messages) - kept} more messages left out]")
        if encoding.all(sizes[kept - 1] + encoding.one(last)) <= limit:
            return [*whole[: kept - 1], last]
    return [_cut_to(messages[0], len(messages) - 1, limit, encoding)]


def _cut_to(message: Message, left_out: int, limit: int, encoding: _Encoding) -> dict[str, Any]:
    """One message with as much of its text as fits, found by halving: how many bytes a character takes differs."""
    note = f"[{left_out} more messages left out]" if left_out else None
    fits, low, high = _structure(message._replace(text=""), note), 0, len(message.text)
    while low < high:
        middle = (low + high + 1) // 2
        candidate = _structure(message._replace(text=_cut(message.text, middle)), note)
        if encoding.all(encoding.one(candidate)) <= limit:
            fits, low = candidate, middle
        else:
            high = middle - 1
    return fits
