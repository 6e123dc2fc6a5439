"""The outcome of a loop by hand: tokens and finish reason of each sequence, modalities, cache, content.

In: what the caller has told, and what its passes and tokens have shown. Out: the ``Outcome`` of the recording interface. What cannot be
known is left out. At most four host reads, whatever the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from inferspan import messages, semconv
from inferspan.capture.generate.arguments import Arguments
from inferspan.capture.generate.modalities import Modalities
from inferspan.capture.generate.outcome import input_modalities, kv_cache_bytes, modalities_given
from inferspan.capture.generate.run import Run
from inferspan.capture.generate.usage import input_tokens
from inferspan.capture.outcome import Outcome
from inferspan.capture.owner import Owner
from inferspan.guard import contain
from inferspan.records import AttributeValue, Failure, Message
from inferspan.setting_checks import warn_once

from .prompt import Prompt
from .tokens import ChosenTokens, Counted

__all__ = ["Facts", "describe_outcome"]

_CACHES = {"DynamicCache": "dynamic", "StaticCache": "static"}
"""Implementations of a cache by their class, as generation configurations call them."""


class Facts(NamedTuple):
    """What is known of a generation whose steps have ended.

    ``first``: arguments of the first pass; ``cache``: what the last one has returned; ``reused``: positions of a row in the cache before;
    ``positions``: those of a row before the first token; ``steps``: how many were seen.
    """

    owner: Owner
    prompt: Prompt
    chat: Any
    tokenizer: Any
    tokens: ChosenTokens
    first: Arguments | None
    cache: Any
    reused: int | None
    positions: int | None
    steps: int
    max_new_tokens: int | None
    without_logits: bool


def _run(facts: Facts) -> Run:
    """The facts in the words of ``generate()``."""
    given, first = facts.prompt.arguments, facts.first
    if first is not None:
        given = given._replace(features=given.features | first.features)
        if not facts.prompt.known or facts.prompt.arguments == Arguments():
            given = first
    return Run(given, reused=facts.reused)


def _input_tokens(facts: Facts, run: Run) -> list[int] | None:
    prompt, rows = facts.prompt, facts.tokens.rows
    if prompt.counts is not None:
        return list(prompt.counts)
    if prompt.each is not None:
        return [prompt.each] * (rows or 1)
    counted = input_tokens(run, facts.owner.model)
    if prompt.known or counted is None or not facts.positions:
        return counted
    # In several passes the first one has shown only a part of the prompt.
    width = 0 if run.arguments.input_ids is None else int(run.arguments.input_ids.shape[1])
    return counted if facts.positions == width + (facts.reused or 0) else [facts.positions] * len(counted)


def _attributes(facts: Facts) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    if facts.max_new_tokens is not None:
        found[semconv.REQUEST_MAX_TOKENS] = facts.max_new_tokens
    cache = getattr(facts.cache, "self_attention_cache", facts.cache)
    implementation = _CACHES.get(type(cache).__name__)
    if implementation is not None:
        found[semconv.MODEL_CACHE] = implementation
    return found


def _reasons(facts: Facts, counted: Counted, reason: object) -> list[str]:
    rows = len(counted.counts)
    if isinstance(reason, str) and reason.strip():
        return facts.tokens.reasons(counted, [reason] * rows)
    if isinstance(reason, list | tuple) and len(reason) == rows and all(isinstance(one, str) and one.strip() for one in reason):
        return facts.tokens.reasons(counted, list(reason))
    warn_once("inferspan.generation(): finish() takes a text as reason, or a list with one for each of the %d rows; stop is recorded", rows)
    return facts.tokens.reasons(counted, [semconv.FINISH_STOP] * rows)


def _content(
    facts: Facts, run: Run, counted: Counted | None, reasons: Sequence[str] | None
) -> tuple[Sequence[Message], Sequence[Message]]:
    owner, tokenizer = facts.owner, facts.tokenizer
    if not owner.content or tokenizer is None:
        return (), ()
    limit = owner.settings.max_content_chars
    inputs = messages.chat_messages(facts.chat, max_chars=limit) if facts.chat is not None else []
    if not inputs:
        inputs = messages.input_messages(tokenizer, run.arguments.input_ids, run.arguments.attention_mask, max_chars=limit)
    if counted is None or reasons is None:
        return inputs, ()
    rows = [row[:count] for row, count in zip(counted.ids.tolist(), counted.counts, strict=True)]
    return inputs, messages.output_messages(tokenizer, rows, reasons, max_chars=limit)


def describe_outcome(facts: Facts, reason: object, failure: Failure | None) -> Outcome:
    """The outcome of a generation.

    Args:
        facts: of it.
        reason: why it ended, as the loop says.
        failure: the exception that ended it.
    """
    owner, tokens = facts.owner, facts.tokens
    run = _run(facts)
    counted: Counted | None = None
    inputs: list[int] | None = None
    reasons: list[str] | None = None
    cache_bytes: int | None = None
    with contain("counting output tokens"):
        counted = tokens.count()
    with contain("counting input tokens"):
        inputs = _input_tokens(facts, run)
    split = Modalities({}, {}, "text" if owner.text_only else "unknown")
    modalities: dict[str, AttributeValue] = {}
    with contain("counting tokens by modality"):
        split = input_modalities(run, owner.model, inputs, text_only=owner.text_only)
        if not owner.text_only or owner.engine.has_stages:
            modalities = modalities_given(run, owner.model, split)
    whole = counted if failure is None else None
    if whole is not None:
        with contain("reasons of a generation"):
            reasons = _reasons(facts, whole, reason)
    if facts.cache is not None:
        with contain("size of the cache"):
            cache_bytes = kv_cache_bytes(facts.cache)
    prompt_messages: Sequence[Message] = ()
    output_messages: Sequence[Message] = ()
    with contain("content"):
        prompt_messages, output_messages = _content(facts, run, whole, reasons)
    unobserved = ["logits: not given"] if facts.without_logits else []
    if failure is None and not facts.steps:
        unobserved.append("steps: no forward pass of the model was seen")
    produced = None
    if failure is not None:
        produced = 0 if counted is None else sum(counted.counts)
    return Outcome(
        failure=failure,
        unseen_steps=0 if facts.steps else None,
        input_tokens=inputs,
        output_tokens=None if whole is None else whole.counts,
        finish_reasons=reasons,
        produced=produced,
        rows=tokens.rows,
        reused_tokens=facts.reused,
        cache_bytes=cache_bytes,
        tokens_of_first_row=not facts.without_logits,
        step_rows=None if whole is None else sum(whole.counts) / tokens.steps,
        sequences=() if whole is None else [row[:count] for row, count in zip(whole.ids.tolist(), whole.counts, strict=True)],
        attributes={**_attributes(facts), **modalities},
        unobserved=unobserved,
        modality="text" if owner.text_only else "unknown",
        output_modality=split.generated,
        input_split=split.given,
        cached_split=split.cached,
        input_messages=prompt_messages,
        output_messages=output_messages,
    )
