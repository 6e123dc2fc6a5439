"""How a request ended, in the words of its adapter: a value that holds no model, no tensor and no running loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferspan.records import AttributeValue, Failure, Message, RowFigures

__all__ = ["Outcome"]


# Not frozen: Python sets each field by a function call then, and requests make two of them.
@dataclass(slots=True)
class Outcome:
    """The facts of a request that has ended, as its adapter knows them; unknown ones are ``None`` and left out of the telemetry.

    Attributes:
        failure: the exception that ended the request, as text.
        input_tokens: attended positions of each sequence of the caller's batch.
        output_tokens: tokens of each returned sequence, up to and including the first end token.
        finish_reasons: why each returned sequence ended.
        produced: tokens of a request that failed before it returned any.
        rows: sequences of the caller's batch where ``input_tokens`` is not known.
        returned: sequences that are returned for each of them.
        reused_tokens: positions of a sequence that were in the cache when the request began.
        cache_bytes: size of keys and values at the end.
        tokens_of_first_row: whether the statistics of the steps are those of the tokens of the first sequence, so that arrays by token
            are possible.
        unseen_steps: decode steps that ran and were not observed; ``None`` if their number is not known, so that none is reported.
        step_rows: sequences that ran in a step, on average.
        drafted_tokens: tokens that were drafted for verification; ``None`` where none are.
        accepted_tokens: those of them that were accepted.
        sequences: ids of the tokens of each returned sequence, up to and including its first end token. They are content, recorded only
            where that is captured; figures of them are none.
        figures: of the raw logits of each sequence, or one of all together; the recording adds those that it has measured.
        nonfinite_logits: of them, those that were NaN or plus infinity; likewise.
        attributes: more of the request span, such as the configuration.
        unobserved: parts that were not observed, and the reasons.
        modality: of all input tokens, where they are not split.
        output_modality: of all output tokens.
        input_split: input tokens by modality, where that is known.
        cached_split: those of them that were in the cache when the request began.
        input_messages: captured content.
        output_messages: captured content.
    """

    failure: Failure | None = None
    input_tokens: Sequence[int] | None = None
    output_tokens: Sequence[int] | None = None
    finish_reasons: Sequence[str] | None = None
    produced: int | None = None
    rows: int | None = None
    returned: int = 1
    reused_tokens: int | None = None
    cache_bytes: int | None = None
    tokens_of_first_row: bool = False
    unseen_steps: int | None = 0
    step_rows: float | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    sequences: Sequence[Sequence[int]] = ()
    figures: Sequence[RowFigures] = ()
    nonfinite_logits: int = 0
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    unobserved: Sequence[str] = ()
    modality: str = "text"
    output_modality: str = "text"
    input_split: Mapping[str, int] = field(default_factory=dict)
    cached_split: Mapping[str, int] = field(default_factory=dict)
    input_messages: Sequence[Message] = ()
    output_messages: Sequence[Message] = ()
