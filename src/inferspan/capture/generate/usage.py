"""Input and output tokens of a whole ``generate()``, whatever it runs inside.

A class may have a ``generate()`` of its own that changes the prompt, calls that of transformers, once or several times, and cuts the
result. What that one was given and has returned is known then, and counts: the result of the outer one tells where its prompt ends only by
chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.model_info import has_plain_generate, unwrapped
from inferspan.guard import read_attribute

from .arguments import Arguments
from .run import InnerCall, Run, prompt_of
from .tokens import Generated, Loop, count_input, count_output, sequences_of

__all__ = ["input_tokens", "output_tokens"]


def input_tokens(run: Run, model: Any) -> list[int] | None:
    """Tokens of each row of the prompt, ``None`` where they are not known. Waits for the device."""
    main_input = read_attribute(model, "main_input_name", "input_ids")
    main_input = main_input if isinstance(main_input, str) else "input_ids"
    loop = run.loops[0] if run.loops else None
    prompts = not any(_leaves_out(one, run.arguments, model, main_input) for one in run.inner)
    if prompts and len(run.inner) == 1:
        # A wrapper that joins images to the prompt feeds its language model more than the caller's text.
        counted = _count(run.inner[0].arguments, loop, "input_ids", text=True)
        if counted is not None:
            return counted
    elif prompts and run.inner and not _has_prompt(run.arguments) and _is_of_one(run.inner, run.loops):
        rows = [_count(one.arguments, run.loops[one.first], "input_ids", text=True) for one in run.inner]
        rows = rows[:1] if _follow([one.sequences for one in run.inner], run.loops) else rows
        return None if None in rows else [count for row in rows if row is not None for count in row]
    if len(run.inner) > 1 or not prompts:
        loop = None  # it begins with a part of the prompt, or with another one
    return _count(run.arguments, loop, main_input, text=main_input == "input_ids")


def _count(arguments: Arguments, loop: Loop | None, main_input: str, *, text: bool) -> list[int] | None:
    encoded = arguments.encoded
    return count_input(
        input_ids=prompt_of(arguments, main_input),
        inputs_embeds=arguments.inputs_embeds if encoded is None else encoded,
        attention_mask=arguments.attention_mask,
        # The loop of a decoder-only model starts with the prompt, that of another one with the start of the decoder.
        loop=loop if encoded is None else None,
        text_encoder_or_decoder=text,
    )


def _leaves_out(inner: InnerCall, outer: Arguments, model: Any, main_input: str) -> bool:
    """Whether what an inner call was given is not the prompt."""
    arguments = inner.arguments
    # The model itself, inside a wrapper for adapters or its own generate(): its input is sound or a picture.
    if main_input != "input_ids" and arguments.input_ids is None and arguments.inputs_embeds is None:
        return True
    if inner.module == id(model) and prompt_of(arguments, "input_ids") is None and outer.features and not _has_prompt(outer):
        return True
    # A decoder that looks at what an encoder has made of the caller's text begins with a start token.
    return "encoder_hidden_states" in arguments.names and _has_prompt(outer)


def _has_prompt(arguments: Arguments) -> bool:
    return prompt_of(arguments, "input_ids") is not None or arguments.inputs_embeds is not None


def _is_of_one(calls: Sequence[InnerCall], loops: Sequence[Loop]) -> bool:
    """Whether all loops are those of calls of transformers' ``generate()`` on one module, one each."""
    each = [(one.first, one.last) for one in calls] == [(place, place + 1) for place in range(len(loops))]
    return each and all(one.plain and one.module == calls[0].module for one in calls)


def _delegates(model: Any) -> bool:
    """Whether the model is a wrapper around one whose ``generate()`` is its own, so that its result is not that of a decoding loop."""
    base = None if model is None else unwrapped(model)
    return base is not None and base is not model and not has_plain_generate(base)


def output_tokens(run: Run, result: Any, *, has_plain_generate: bool, model: Any) -> Generated | None:
    """Tokens of each row that was returned, ``None`` where they are not known. Waits for the device.

    Args:
        run: facts of the call.
        result: its result.
        has_plain_generate: whether the model's ``generate()`` is that of transformers.
        model: the model.
    """
    sequences = sequences_of(result)
    inner = [one for one in run.returned if one.plain or not _delegates(model)]
    if len(inner) == 1 and len(run.loops) == 1:
        made = inner[0].sequences
        if made is not None and _counts_for(inner[0], made, sequences, model):
            return count_output(made, run.loops, exact=True, prompt=None)
    elif len(inner) > 1 and _is_of_one(inner, run.loops):
        several = _of_several(inner, run.loops, sequences)
        if several is not None:
            return several
    if sequences is None:
        return None
    own = has_plain_generate and not run.inner
    if not run.loops and not own:
        return None
    return count_output(sequences, run.loops, exact=own, prompt=prompt_of(run.arguments, "input_ids"))


def _counts_for(inner: InnerCall, made: Tensor, sequences: Tensor | None, model: Any) -> bool:
    """Whether the tokens of the one call inside are those of the whole one."""
    if sequences is None:
        return True
    if inner.module != id(model):
        return made.shape[0] == sequences.shape[0]
    # A model's own generate() may cut off the prompt, or the end token; what is returned counts.
    return made.shape == sequences.shape and torch.equal(made, sequences)


def _of_several(calls: Sequence[InnerCall], loops: Sequence[Loop], sequences: Tensor | None) -> Generated | None:
    """The tokens of calls on one module, one after the other; ``None`` where the result is made of them in a way that is not known."""
    made = [one.sequences for one in calls if one.sequences is not None]
    if len(made) < len(calls):
        return None
    if sequences is None:
        parts = [count_output(rows, [loop], exact=True, prompt=None) for rows, loop in zip(made, loops, strict=True)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return Generated(
            [count for part in known for count in part.counts],
            [reason for part in known for reason in part.reasons],
            [row for part in known for row in part.rows],
        )
    if sequences.shape != made[-1].shape or not torch.equal(sequences, made[-1]):
        return None
    last = replace(loops[-1], prompt_width=loops[0].prompt_width, decisions=[]) if _follow(made, loops) else loops[-1]
    return count_output(sequences, [last], exact=True, prompt=None)


def _follow(made: Sequence[Tensor | None], loops: Sequence[Loop]) -> bool:
    """Whether each call goes on where the one before has ended."""
    for before, after, loop in zip(made, made[1:], loops[1:], strict=False):
        if before is None or after is None or loop.prompt_width != before.shape[1] or after.shape[0] != before.shape[0]:
            return False
        if not torch.equal(after[:, : before.shape[1]], before):
            return False
    return True
