"""Captured content: decoding, truncation, the JSON schema and its limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from inferspan.messages import LIMIT, chat_messages, input_messages, output_messages, structured, to_json
from inferspan.records import Message
from tests.integration.delivery.telemetry_made import any_value


class Letters:
    """A tokenizer whose token n is the n-th letter, and 0 a special token."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The letters of ``ids``."""
        return "".join("<s>" if token == 0 else chr(96 + token) for token in ids if token or not skip_special_tokens)


def text_of(structure: dict[str, Any]) -> list[str]:
    """The texts of a message's parts."""
    assert {part["type"] for part in structure["parts"]} == {"text"}
    return [part["content"] for part in structure["parts"]]


def test_each_row_of_the_prompt_is_a_user_message() -> None:
    """Padding and special tokens are no part of a prompt's text; every row is one message."""
    ids, mask = torch.tensor([[26, 26, 0, 1, 2], [0, 3, 4, 5, 6]]), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert input_messages(Letters(), ids, mask, max_chars=10) == [Message("user", "ab"), Message("user", "cdef")]


@pytest.mark.parametrize("mask", [None, torch.ones(2, 2), torch.zeros(0)])
def test_a_prompt_without_a_usable_mask_is_taken_whole(mask: torch.Tensor | None) -> None:
    """No mask, or one of another shape, leaves all tokens; one row without a batch dimension is one prompt."""
    assert input_messages(Letters(), np.array([1, 2, 3]), mask, max_chars=10) == [Message("user", "abc")]


@pytest.mark.parametrize("tokenizer", [None, object(), "text"])
def test_without_decoding_there_are_no_messages(tokenizer: object) -> None:
    """No tokenizer, or one that cannot decode, gives nothing, on both sides."""
    assert input_messages(tokenizer, torch.ones(1, 2, dtype=torch.long), None, max_chars=10) == []
    assert output_messages(tokenizer, [[1]], ["stop"], max_chars=10) == []


@pytest.mark.parametrize("ids", [None, torch.ones(1, 3, 4), torch.zeros(0, dtype=torch.long), torch.tensor(3)])
def test_what_are_no_token_ids_gives_no_messages(ids: torch.Tensor | None) -> None:
    """Absent, floating, empty or scalar inputs have no text."""
    assert input_messages(Letters(), ids, None, max_chars=10) == []


def test_each_sequence_is_an_assistant_message_with_its_reason() -> None:
    """Outputs carry the finish reason of their sequence, and none where none is known."""
    got = output_messages(Letters(), [[1, 2, 0], [3], []], ["stop", None], max_chars=10)
    assert got == [Message("assistant", "ab", "stop"), Message("assistant", "c"), Message("assistant", "")]


def test_a_long_text_is_cut_and_says_so() -> None:
    """A text beyond the limit keeps its beginning and names what is missing; one at the limit is whole."""
    assert input_messages(Letters(), torch.tensor([[1, 2, 3, 4, 5]]), None, max_chars=2)[0].text == "ab… [truncated 3 characters]"
    assert output_messages(Letters(), [[1, 2]], ["length"], max_chars=2)[0].text == "ab"


def test_a_tokenizer_that_returns_no_text_is_passed_over() -> None:
    """A ``decode`` with another result than a text gives no message."""

    class Odd:
        def decode(self, ids: Sequence[int], **options: Any) -> list[int]:
            return list(ids)

    assert output_messages(Odd(), [[1]], ["stop"], max_chars=10) == []


def test_a_chat_keeps_its_roles() -> None:
    """Role dicts become messages; parts that are not text are named by their type only; a batch of chats is joined."""
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "image", "image": b"..."}, "this?"]},
        {"content": "no role, and long text!"},
        {"role": "assistant", "content": None},
        "not a message",
    ]
    want = [
        Message("system", "be brief"),
        Message("user", "what is\n[image]\nthis?"),
        Message("user", "no role, and long text… [truncated 1 characters]"),
        Message("assistant", ""),
    ]
    assert chat_messages(chat, max_chars=22) == want
    assert chat_messages([chat, [{"role": "user", "content": "x"}]], max_chars=22) == [*want, Message("user", "x")]


def test_json_has_the_schema_of_the_conventions() -> None:
    """Role, text parts, and a finish reason where there is one; characters are written as they are."""
    text = to_json([Message("user", 'Grüß "dich"\n'), Message("assistant", "日本", "stop")])
    assert "日本" in text
    assert json.loads(text) == [
        {"role": "user", "parts": [{"type": "text", "content": 'Grüß "dich"\n'}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "日本"}], "finish_reason": "stop"},
    ]
    assert to_json([]) == "[]"


def test_half_a_character_does_not_stop_the_export() -> None:
    """A lone surrogate is replaced, so that the attribute can always be encoded."""
    (message,) = chat_messages([{"role": "user", "content": "a\ud800b"}], max_chars=10)
    assert message.text == "a?b"
    assert to_json([Message("user", "a\ud800b")]).encode() == to_json([message]).encode()


@pytest.mark.parametrize("character", ["a", '"', "ü", "日", "🙂"])
@pytest.mark.parametrize(("count", "length"), [(2, 8192), (5, 8192), (40, 1000), (3000, 10), (1, 30_000), (2, 30_000)])
def test_json_never_exceeds_the_limit(character: str, count: int, length: int) -> None:
    """Whatever does not fit is dropped from the end as whole messages, and the last text part says how many."""
    messages = [Message("user", character * length) for _ in range(count)]
    text = to_json(messages)
    assert len(text.encode()) <= LIMIT
    got = json.loads(text)
    if len(got) == count and count > 1:
        assert [text_of(message) for message in got] == [[character * length]] * count
    elif count > 1:
        assert text_of(got[-1])[-1] == f"[{count - len(got)} more messages left out]"
        assert [text_of(message) for message in got[:-1]] == [[character * length]] * (len(got) - 1)
    first = text_of(got[0])[0]
    assert first == character * length or (len(got) == 1 and first.startswith(character) and first.endswith(" characters]"))


def test_json_at_the_limit_is_whole() -> None:
    """A result of exactly the limit is not cut, one byte less cuts it."""
    messages = [Message("user", "abc"), Message("assistant", "def", "stop")]
    size = len(to_json(messages))
    assert to_json(messages, limit=size) == to_json(messages)
    assert "def" not in to_json(messages, limit=size - 1)


@pytest.mark.parametrize("character", ["a", '"', "ü", "日", "🙂", "\n"])
@pytest.mark.parametrize(("count", "length"), [(2, 8192), (5, 8192), (40, 1000), (3000, 10), (1, 40_000), (2, 40_000), (1, 3)])
def test_lists_and_maps_never_exceed_the_limit_once_encoded(character: str, count: int, length: int) -> None:
    """The limit counts the bytes of the value in OTLP, which differ from those of JSON; what is left out is said as there."""
    messages = [Message("user", character * length) for _ in range(count)]
    got = structured(messages)
    assert any_value(got).ByteSize() <= LIMIT
    if len(got) < count:
        assert text_of(got[-1])[-1] == f"[{count - len(got)} more messages left out]"
    first = text_of(got[0])[0]
    assert first == character * length or (len(got) == 1 and first.startswith(character) and first.endswith(" characters]"))


def test_lists_and_maps_at_the_limit_are_whole() -> None:
    """A value of exactly the limit is not cut, one byte less cuts it."""
    messages = [Message("user", "abc" * 100), Message("assistant", "def", "stop")]
    size = any_value(structured(messages)).ByteSize()
    assert structured(messages, limit=size) == json.loads(to_json(messages))
    assert len(structured(messages, limit=size - 1)) == 1


def test_no_messages_are_an_empty_list() -> None:
    """Nothing to say is an empty list in both forms."""
    assert structured([]) == []
    assert to_json([]) == "[]"
