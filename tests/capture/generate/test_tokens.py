"""Counting: attended prompt positions, and tokens up to the first end of each row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferspan.capture.generate.tokens import Generated, Loop, count_input, count_output, sequences_of

IDS = torch.tensor([[5, 6, 7], [5, 6, 7]])


def _input(**options: Any) -> list[int] | None:
    defaults: dict[str, Any] = {"input_ids": None, "inputs_embeds": None, "attention_mask": None, "loop": None}
    return count_input(**{**defaults, "text_encoder_or_decoder": True, **options})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"input_ids": IDS}, [3, 3]),
        ({"input_ids": IDS, "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}, [2, 3]),
        ({"input_ids": IDS, "attention_mask": torch.ones(2, 9)}, [9, 9]),
        ({"input_ids": IDS, "attention_mask": torch.ones(2, 1, 3, 3)}, [3, 3]),
        ({"inputs_embeds": torch.ones(2, 4, 8)}, [4, 4]),
        ({"input_ids": IDS, "loop": Loop(attention_mask=torch.tensor([[1, 1, 0]] * 6))}, [2, 2]),
        ({"loop": Loop(prompt_width=1, rows=4, beams=2)}, [1, 1]),
        ({"loop": Loop()}, None),
        ({}, None),
        ({"text_encoder_or_decoder": False, "loop": Loop(prompt_width=2, rows=1)}, None),
    ],
)
def test_input(options: dict[str, Any], expected: list[int] | None) -> None:
    """Attended positions for each row; what is not known is ``None``."""
    assert _input(**options) == expected


def _output(rows: list[list[int]], loop: Loop, *, exact: bool = True, prompt: Any = None) -> Generated | None:
    return count_output(torch.tensor(rows), [loop], exact=exact, prompt=prompt)


def test_output_up_to_the_first_end() -> None:
    """Filler after the end is not output, the end itself is, and the reason is told for each row."""
    loop = Loop(eos=frozenset({2}), pad=0, prompt_width=2, max_length=6)
    found = _output([[5, 5, 7, 2, 0, 0], [5, 5, 7, 8, 9, 2], [5, 2, 7, 8, 9, 9]], loop)
    assert found == Generated([2, 4, 4], ["stop", "stop", "length"], [[7, 2], [7, 8, 9, 2], [7, 8, 9, 9]])


def test_rows_ended_by_decisions() -> None:
    """Where a criterion ended a row, the loop's own decisions tell when, though padding looks like the end token."""
    loop = Loop(eos=frozenset({2}), pad=2, prompt_width=1, max_length=9, custom=True)
    for done in ([False, False], [True, False], [True, True]):
        loop.note_decision(torch.tensor(done))
    found = _output([[5, 7, 8, 2], [5, 7, 8, 9]], loop)
    assert found == Generated([2, 3], ["stop", "stop"], [[7, 8], [7, 8, 9]])


def test_many_decisions_are_packed() -> None:
    """Thousands of decisions are kept in few tensors and read back in order."""
    loop = Loop(custom=True)
    for step in range(1300):
        loop.note_decision(torch.tensor([step >= 700, step >= 1299]))
    assert len(loop.decisions) < 300 and loop.ended_after() == [701, 1300]


def test_prompt_that_is_not_certain() -> None:
    """A result of unknown origin is compared with the prompt: found, cut off, or not to be told."""
    loop = Loop(prompt_width=2, eos=frozenset({2}))
    prompt = torch.tensor([[5, 6]])
    assert _output([[5, 6, 7, 8]], loop, exact=False, prompt=prompt) == Generated([2], ["length"], [[7, 8]])
    assert _output([[7, 8]], loop, exact=False, prompt=prompt) == Generated([2], ["length"], [[7, 8]])
    assert _output([[5, 6, 7]], Loop(), prompt=prompt) == Generated([1], ["length"], [[7]])
    assert _output([[7, 8, 9]], Loop(), prompt=prompt) is None


def test_sequences_of_known_results_only() -> None:
    """Token ids are taken from tensors and model outputs; anything else is unmeasured."""
    assert sequences_of(IDS) is IDS and sequences_of({"sequences": IDS}) is IDS
    for odd in (None, "text", [IDS], (IDS,), torch.ones(2, 3), torch.ones(3, dtype=torch.long), {"ids": IDS}, iter([IDS])):
        assert sequences_of(odd) is None
