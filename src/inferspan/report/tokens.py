"""A request -> the known facts of each generated token: confidence, entropy, rank, time, and its text if content was captured.

In comes a ``Request``; out comes a ``TokenTable`` with one list of tokens for each row of the batch, and sentences that say why
something is absent. Values come from the arrays on the request span where they are there, else from the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from inferspan import semconv
from inferspan.report.otlp_lines import Value
from inferspan.report.session import Request, Span
from inferspan.text.numbers import counted

__all__ = ["Token", "TokenTable", "tokens_of"]

_STEP_KEYS = {
    "logprob": semconv.LOGITS_CHOSEN_LOGPROB,
    "entropy": semconv.LOGITS_ENTROPY,
    "top1": semconv.LOGITS_TOP1,
    "margin": semconv.LOGITS_MARGIN,
    "rank": semconv.LOGITS_CHOSEN_RANK,
}
_ONLY_FIRST_ROW = ("rank",)
_ARRAYS = {"logprob": semconv.TOKEN_LOGPROBS, "entropy": semconv.TOKEN_ENTROPIES, "interval": semconv.TOKEN_INTERVALS}


@dataclass(slots=True)
class Token:
    """One generated token; ``interval`` is seconds since the token before, of the first one since ``generate()`` began."""

    logprob: float | None = None
    entropy: float | None = None
    top1: float | None = None
    margin: float | None = None
    rank: float | None = None
    interval: float | None = None
    id: int | None = None
    text: str | None = None
    top_k: tuple[tuple[str, float], ...] = ()
    attended: tuple[tuple[str, float], ...] = ()
    """Keys that its step attended to, by position and text, with their weight."""


@dataclass(slots=True)
class TokenTable:
    """Tokens by row of the batch; ``reasons`` say why rows, values or texts are absent."""

    rows: list[list[Token]]
    reasons: list[str] = field(default_factory=list)


def tokens_of(request: Request) -> TokenTable:
    """The tokens of a request, row by row; no rows if nothing is known of any token."""
    if request.kind == "forward":
        return TokenTable([], ["A plain forward pass generates no tokens."])
    lengths = [max(0, int(length)) for length in request.numbers(semconv.SEQUENCE_OUTPUT_TOKENS)]
    steps = _token_steps(request)
    rows = _rows_from_steps(steps, lengths)
    _fill_first_row(request, rows, lengths)
    rows = [row for row in rows if row]
    return TokenTable(rows, _reasons(request, rows, lengths, steps))


def _token_steps(request: Request) -> list[Span]:
    """The step that chose each token, or nothing where steps and tokens are not one to one."""
    prefill = [step for step in request.steps if step.name == semconv.SPAN_PREFILL_STEP]
    decode = [step for step in request.steps if step.name == semconv.SPAN_DECODE_STEP]
    count = request.number(semconv.DECODE_STEPS)
    longest = max((int(length) for length in request.numbers(semconv.SEQUENCE_OUTPUT_TOKENS)), default=None)
    complete = bool(prefill) and (count is None or count == len(decode))
    # Assisted decoding yields several tokens a step; a step at the end may have been undone. Only an exact match can be joined.
    if not complete or (longest is not None and longest != len(decode) + 1):
        return []
    return [prefill[-1], *decode]


def _rows_from_steps(steps: list[Span], lengths: list[int]) -> list[list[Token]]:
    widths = [len(value) for step in steps if isinstance(value := step.attributes.get(_rows_key("logprob")), tuple)]
    rows: list[list[Token]] = []
    for row in range(max([1, *widths])):
        length = lengths[row] if row < len(lengths) else len(steps)
        rows.append([_token(step, row, _place(row, number, lengths), many=bool(widths)) for number, step in enumerate(steps[:length])])
    return rows


def _place(row: int, step: int, lengths: list[int]) -> int:
    """Index of a row's value in the arrays of a step, which leave out the rows that have ended."""
    ended = sum(length <= step for length in lengths[:row])
    return row - ended


def _token(step: Span, row: int, place: int, *, many: bool) -> Token:
    token = Token()
    for name, key in _STEP_KEYS.items():
        if many and name not in _ONLY_FIRST_ROW:
            values = step.attributes.get(_rows_key(name))
            value = values[place] if isinstance(values, tuple) and place < len(values) else None
        else:
            value = step.attributes.get(key) if row == 0 else None
        if isinstance(value, int | float):
            setattr(token, name, value)
    _add_content(token, step.attributes, place)
    return token


def _rows_key(name: str) -> str:
    return semconv.LOGITS_ROWS[_STEP_KEYS[name]]


def _add_content(token: Token, attributes: Mapping[str, Value], place: int) -> None:
    """Id, text and likeliest tokens of the row at this place of the arrays."""
    numbers, texts = attributes.get(semconv.STEP_TOKEN_IDS), attributes.get(semconv.STEP_TOKEN_TEXTS)
    number = numbers[place] if isinstance(numbers, tuple) and place < len(numbers) else None
    text = texts[place] if isinstance(texts, tuple) and place < len(texts) else None
    token.id = number if isinstance(number, int) else None
    token.text = text if isinstance(text, str) else None
    shares, ids = attributes.get(semconv.LOGITS_TOP_K_PROBABILITIES), attributes.get(semconv.LOGITS_TOP_K_IDS)
    names = attributes.get(semconv.LOGITS_TOP_K_TEXTS, ids)
    if isinstance(shares, tuple) and isinstance(names, tuple) and isinstance(numbers, tuple) and numbers:
        width = len(shares) // len(numbers)
        some = slice(place * width, (place + 1) * width)
        pairs = zip(names[some], shares[some], strict=False)
        token.top_k = tuple((str(name), share) for name, share in pairs if isinstance(share, int | float))


def _fill_first_row(request: Request, rows: list[list[Token]], lengths: list[int]) -> None:
    arrays = {name: request.numbers(key) for name, key in _ARRAYS.items()}
    # The intervals are the call's, so a first row that ended before the others has more intervals than tokens.
    length = max(len(arrays["logprob"]), len(arrays["entropy"])) or len(arrays["interval"])
    length = min(length, lengths[0]) if lengths else length
    first = rows[0]
    first.extend(Token() for _ in range(length - len(first)))
    for name, values in arrays.items():
        for token, value in zip(first, values, strict=False):
            setattr(token, name, value)
    for token, number in zip(first, request.numbers(semconv.TOKEN_IDS), strict=False):
        token.id = int(number)


def _reasons(request: Request, rows: list[list[Token]], lengths: list[int], steps: list[Span]) -> list[str]:
    if not rows:
        return [_why_nothing(request)]
    reasons = []
    if all(token.logprob is None for token in rows[0]):
        reasons.append("Confidence is absent: the logits were not recorded (setting logits=False, or see inferspan.unobserved).")
    if request.span.attributes.get(semconv.DETAIL_KEPT) is False:
        return [*reasons, "Texts, top-1, margin and rank are absent: the detail was not kept."]
    if all(token.text is None for token in rows[0]):
        reasons.append(
            "Texts are absent: prompts and outputs are recorded only with"
            " OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY and instrument(model, tokenizer=tokenizer)."
        )
    if not steps and all(token.top1 is None for token in rows[0]):
        reasons.append("Top-1, margin and rank are absent: not every step has a span here, or a step made several tokens.")
    if len(rows) < len(lengths):
        reasons.append(f"{len(lengths)} sequences were generated; values are kept for {len(rows)} of them.")
    if request.flag(semconv.TOKENS_TRUNCATED):
        reasons.append(f"Only the first {counted(len(rows[0]), 'token')} can be shown: the arrays on the request are bounded.")
    return reasons


def _why_nothing(request: Request) -> str:
    if request.span.failed:
        return "No token was recorded: the request failed before its end."
    if request.number(semconv.OUTPUT_TOKENS) == 0:
        return "No token was generated."
    if request.span.attributes.get(semconv.DETAIL_KEPT) is False:
        return f"No values per token are in the file: the detail was not kept (keep={request.text(semconv.DETAIL_RULE)})."
    return "No values per token are in the file: settings logits and token_arrays are off, or the request was not recorded in detail."


def token_fields() -> tuple[str, ...]:
    """Names of the fields of a token, in order."""
    return tuple(item.name for item in fields(Token))
