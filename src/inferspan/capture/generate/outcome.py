"""The outcome of a ``generate()``: configuration, tokens and finish reason of each sequence, cache, content.

Everything comes from the arguments, the final configuration, the loops that ran and the returned sequences. At most four host reads,
at any length. Facts that cannot be known are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from inferspan import messages, semconv
from inferspan.capture.outcome import Outcome
from inferspan.capture.owner import Owner
from inferspan.guard import contain, read_attribute, read_attributes
from inferspan.records import AttributeValue, Failure, Message

from .criteria import stop_kinds
from .modalities import Modalities, given_modalities, modalities
from .run import Run, prompt_of
from .tokens import Generated, Loop
from .usage import input_tokens, output_tokens

__all__ = ["cache_hit", "describe_outcome", "input_modalities", "kv_cache_bytes", "modalities_given", "reused_tokens"]

DEEPEST = 6
"""Objects and lists inside each other, from a cache to its tensors."""
_COUNTERS = (torch.int64, torch.int32, torch.bool)
_PLAIN = (bool, int, float, str)


def _layers(cache: Any) -> Sequence[Any]:
    """Layers of a cache, self- and cross-attention alike; empty for anything but a cache of transformers."""
    if cache is None or not type(cache).__module__.startswith("transformers."):
        return ()
    parts = [part for name in ("self_attention_cache", "cross_attention_cache") if (part := cache.__dict__.get(name)) is not None] or [
        cache
    ]
    return [layer for part in parts for layer in (part.__dict__.get("layers") or ())]


def kv_cache_bytes(cache: Any) -> int | None:
    """Bytes that a cache takes: keys and values, and the states of convolutions and recurrences; ``None`` if they cannot be seen."""
    tensors: dict[int, Tensor] = {}
    _collect((cache,), tensors)
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors.values()]
    return sum(sizes) if sizes else None


def _collect(values: Iterable[Any], found: dict[int, Tensor], depth: int = 0) -> None:
    """The tensors of a cache of transformers, each once, by identity; positions and counters are none of its content."""
    for value in values:
        if value is None or isinstance(value, _PLAIN):
            continue
        if isinstance(value, Tensor):
            if value.dtype not in _COUNTERS:
                found[id(value)] = value
        elif depth > DEEPEST:
            continue
        elif isinstance(value, dict):
            _collect(value.values(), found, depth + 1)
        elif isinstance(value, list | tuple):
            _collect(value, found, depth + 1)
        elif type(value).__module__.startswith("transformers.") and not isinstance(value, torch.nn.Module):
            # Layers of a cache may be of the model's own file.
            _collect(getattr(value, "__dict__", {}).values(), found, depth + 1)


def reused_tokens(caches: Iterable[Any]) -> int | None:
    """Positions already in a cache that the caller passes in; dynamic caches only, a static one would have to be read."""
    with contain("cache length"):
        for cache in caches:
            for layer in _layers(cache):
                keys = layer.__dict__.get("keys")
                if type(layer).__name__ == "DynamicLayer" and isinstance(keys, Tensor) and keys.dim() == 4:
                    return int(keys.shape[-2]) or None
                # A sliding window holds fewer positions than it has seen.
                seen = layer.__dict__.get("cumulative_length")
                if type(layer).__name__.startswith("Dynamic") and type(seen) is int:
                    return seen or None
    return None


def cache_hit(caches: Iterable[Any]) -> bool | None:
    """Whether a cache that the caller passes in holds positions; ``None`` without one, and if they would have to be read."""
    with contain("cache length"):
        given = {type(cache).__name__ for cache in caches if cache is not None}
        return True if reused_tokens(caches) else False if given == {"DynamicCache"} else None
    return None


def input_modalities(run: Run, model: Any, inputs: list[int] | None, *, text_only: bool) -> Modalities:
    """What the tokens stand for, as far as it is known. Waits for the device."""
    return modalities(
        model,
        run.arguments.features,
        run.arguments.attention_mask,
        text_only=text_only,
        ids=prompt_of(run.arguments, read_attribute(model, "main_input_name", "input_ids")),
        rows=inputs,
        loop=run.loops[0] if run.loops else None,
        reused=run.reused,
    )


def modalities_given(run: Run, model: Any, split: Modalities) -> dict[str, AttributeValue]:
    """The modalities that the request had, of a model that takes more than text."""
    arguments = run.arguments
    if arguments.inputs_embeds is not None or arguments.encoded is not None or "mm_encoder_outputs" in arguments.names:
        return {}  # what those were made of is not known
    tokens = prompt_of(arguments, read_attribute(model, "main_input_name", "input_ids")) is not None
    found = given_modalities(arguments.features, split.given, tokens=tokens)
    return {semconv.INPUT_MODALITIES: found} if found else {}


def _configuration(run: Run) -> dict[str, AttributeValue]:
    config = run.config
    attributes: dict[str, AttributeValue] = {}
    if run.arguments.streamed:
        attributes[semconv.REQUEST_STREAM] = True
    if type(run.arguments.seed) is int:
        attributes[semconv.REQUEST_SEED] = run.arguments.seed
    if config is None or not run.loops:  # an interrupt may come between the two
        return attributes
    loop = run.loops[0]
    samples, penalty, limit, stops = read_attributes(config, "do_sample", "repetition_penalty", "max_new_tokens", "stop_strings")
    sampled = bool(samples)
    attributes |= {semconv.DO_SAMPLE: sampled, semconv.NUM_BEAMS: loop.beams}
    rows: list[tuple[str, str, type]] = [(semconv.MODEL_CACHE, "cache_implementation", str)]
    if sampled:
        rows += [
            (semconv.REQUEST_TEMPERATURE, "temperature", float),
            (semconv.REQUEST_TOP_P, "top_p", float),
            (semconv.REQUEST_TOP_K, "top_k", int),
        ]
    for key, name, kind in rows:
        value = read_attribute(config, name)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            attributes[key] = kind(value)
    attributes.setdefault(semconv.MODEL_CACHE, "dynamic")
    if isinstance(penalty, int | float) and penalty != 1:
        attributes[semconv.REPETITION_PENALTY] = float(penalty)
    if loop.returned != 1:
        attributes[semconv.REQUEST_CHOICE_COUNT] = loop.returned
    if not isinstance(limit, int) and isinstance(loop.max_length, int) and loop.prompt_width is not None:
        limit = loop.max_length - loop.prompt_width
    if isinstance(limit, int) and limit > 0:
        attributes[semconv.REQUEST_MAX_TOKENS] = limit
    if stops:
        attributes[semconv.REQUEST_STOP_SEQUENCES] = [stops] if isinstance(stops, str) else [str(stop) for stop in stops]
    return attributes


def _content(run: Run, owner: Owner, generated: Generated | None) -> tuple[Sequence[Message], Sequence[Message]]:
    if not owner.content or owner.tokenizer is None:
        return (), ()
    limit = owner.settings.max_content_chars
    inputs = messages.chat_messages(run.chat, max_chars=limit) if run.chat is not None else []
    if not inputs:
        prompt = prompt_of(run.arguments, "input_ids")
        inputs = messages.input_messages(owner.tokenizer, prompt, run.arguments.attention_mask, max_chars=limit)
    outputs = messages.output_messages(owner.tokenizer, generated.rows, generated.reasons, max_chars=limit) if generated else []
    return inputs, outputs


def _produced(loops: Sequence[Loop]) -> int | None:
    """Tokens that a failed request had produced: known for one row, which cannot have ended before; 0 before the first."""
    if not loops:
        return None
    loop = loops[-1]
    if len(loops) > 1 or loop.beams > 1 or (loop.rows or 1) > 1:
        return None
    return (loop.width or 0) - loop.prompt_width if loop.prompt_width is not None else 0


def _unobserved(run: Run, *, modules: bool, logits: bool) -> list[str]:
    reasons = []
    if run.compiled and modules:
        chunked = read_attribute(run.config, "prefill_chunk_size") is not None
        reasons.append("modules: compiled" if chunked else "modules of decode steps: compiled")
    if run.drafts.unplaced:
        reasons += ["logits: several tokens a step"] if logits else []
        reasons.append("speculative: drafts not seen")
    return reasons


def _step_rows(run: Run, generated: Generated | None) -> float | None:
    """Sequences that ran in a step, on average: each of them has got one token from it."""
    loop = run.loops[0] if len(run.loops) == 1 else None
    if loop is None or loop.beams > 1 or loop.prompt_width is None or loop.width is None or generated is None:
        return None
    if loop.assisted:
        return float(loop.rows) if loop.rows == 1 else None
    steps = loop.width - loop.prompt_width
    return sum(generated.counts) / steps if steps > 0 and loop.rows == len(generated.counts) else None


def _rows(run: Run) -> int | None:
    """Rows of the caller's batch where the prompt has no tokens."""
    loop = run.loops[0] if run.loops else None
    if run.arguments.rows is not None or loop is None or not loop.rows:
        return run.arguments.rows
    return max(1, loop.rows // max(1, loop.beams, loop.returned))


def _unseen_steps(run: Run, owner: Owner, steps: int) -> int | None:
    """Steps that were not seen, as the stopping criteria have told of them; ``None`` if their number is not known."""
    if owner.is_open:
        return 0 if steps else None
    # Uninstrumented in mid-run; the criteria are asked once a step, except for candidates and beams.
    told = len(run.loops) == 1 and run.loops[0].beams == 1 and run.loops[0].prompt_width is not None and not run.drafted
    return run.unseen if told else None


def describe_outcome(
    run: Run, owner: Owner, result: Any, failure: Failure | None, *, cache: Any, logits: bool, steps: int, by_passes: bool
) -> Outcome:
    """The outcome of a ``generate()`` that returned ``result`` or failed.

    Args:
        run: facts of it.
        owner: instrumentation of the model.
        result: its result.
        failure: the exception that came out of it.
        cache: the cache of keys and values that the last pass returned, if any.
        logits: whether statistics of logits were taken.
        steps: how many steps were seen.
        by_passes: whether they are those of a loop that calls no helper.
    """
    generated: Generated | None = None
    inputs: list[int] | None = None
    attributes: dict[str, AttributeValue] = {}
    cache_bytes: int | None = None
    loops, drafts = run.loops, run.drafts.counts or (None, None)
    if cache is not None:
        with contain("size of the cache"):
            cache_bytes = kv_cache_bytes(cache)
    with contain("counting input tokens"):
        inputs = input_tokens(run, owner.model)
    if failure is None:
        with contain("counting output tokens"):
            generated = output_tokens(run, result, has_plain_generate=owner.has_plain_generate, model=owner.model)
    split = Modalities({}, {}, "text" if owner.text_only else "unknown")
    with contain("counting tokens by modality"):
        split = input_modalities(run, owner.model, inputs, text_only=owner.text_only)
    with contain("attributes of generate()"):
        attributes = _configuration(run) | stop_kinds(loops, generated)
        if not owner.text_only or owner.engine.has_stages:
            attributes |= modalities_given(run, owner.model, split)
    prompt_messages: Sequence[Message] = ()
    output_messages: Sequence[Message] = ()
    with contain("content"):
        prompt_messages, output_messages = _content(run, owner, generated)
    unobserved = _unobserved(run, modules=bool(owner.engine.expected), logits=logits)
    if by_passes and logits and not any(loop.prompt_width is not None for loop in loops):
        unobserved.append("logits: chosen tokens not seen")
    unseen = _unseen_steps(run, owner, steps)
    if failure is None and not owner.is_open and unseen != 0:
        unobserved.append("steps: uninstrumented during the call")
    elif failure is None and unseen is None:
        unobserved.append("steps: no forward pass of the model was seen")
    return Outcome(
        failure=failure,
        unseen_steps=unseen,
        input_tokens=inputs,
        output_tokens=None if generated is None else generated.counts,
        finish_reasons=None if generated is None else generated.reasons,
        produced=_produced(loops) if failure is not None else None,
        rows=_rows(run),
        returned=loops[0].returned if loops else 1,
        reused_tokens=run.reused,
        cache_bytes=cache_bytes,
        tokens_of_first_row=len(loops) == 1 and not run.drafts.unplaced and loops[0].beams <= 1,
        step_rows=_step_rows(run, generated),
        drafted_tokens=drafts[0],
        accepted_tokens=drafts[1],
        sequences=() if generated is None else generated.rows,
        attributes=attributes,
        unobserved=unobserved,
        modality="text" if owner.text_only else "unknown",
        output_modality=split.generated,
        input_split=split.given,
        cached_split=split.cached,
        input_messages=prompt_messages,
        output_messages=output_messages,
    )
