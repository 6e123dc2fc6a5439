"""Statistics of steps against float64 passes over what was returned: several tokens a step, and rows that end one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

PROMPT = torch.tensor([[11, 23, 8, 40, 17, 3, 29]])


def _sharp(seed: int = 4, **changes: Any) -> Any:
    """A Llama whose distributions differ from one position to the next."""
    model = models.llama(seed, eos_token_id=None, **changes)
    model.lm_head.weight.data *= 15
    model.model.embed_tokens.weight.data *= 10
    return model


def _draft(model: Any) -> Any:
    """Another model, which agrees with ``model`` on some tokens."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    for parameter in draft.parameters():
        if parameter.dim() > 1:
            parameter.data += 0.15 * parameter.data.std() * torch.randn(parameter.shape, generator=generator)
    config = draft.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule, config.assistant_confidence_threshold = 3, "constant", 0.0
    return draft


def _forced(model: Any, sequences: Tensor, start: int) -> tuple[list[float], list[float]]:
    """Log-probability of each token of the first row from ``start`` on, and the entropy at it, in one pass of float64."""
    with torch.no_grad():
        logits = copy.deepcopy(model).double()(sequences[:1]).logits[0, start - 1 : -1]
    shares = logits.log_softmax(-1)
    chosen = shares.gather(1, sequences[0, start:, None])[:, 0]
    return chosen.tolist(), (-(shares.exp() * shares).sum(-1)).tolist()


def _candidates(model: Any, run: Any) -> tuple[Any, list[Tensor]]:
    """What ``run`` returns, and the ids that went into each pass of ``model``."""
    passes: list[Tensor] = []
    hook = model.register_forward_pre_hook(lambda module, args, kwargs: passes.append(kwargs["input_ids"].clone()), with_kwargs=True)
    try:
        return run(), passes
    finally:
        hook.remove()


# ------------------------------------------------------------------------------------------------------------ several tokens a step
@pytest.fixture(params=["draft model", "prompt lookup", "early exit"])
def assisted(request: pytest.FixtureRequest) -> tuple[Any, Tensor, dict[str, Any]]:
    """A model, a prompt and options by which some drafts are accepted and some are not."""
    model = _sharp()
    if request.param == "draft model":
        return model, PROMPT, {"assistant_model": _draft(model)}
    if request.param == "early exit":
        return model, PROMPT, {"assistant_early_exit": 1}
    said = model.generate(PROMPT, max_new_tokens=9, do_sample=False)
    # transformers 4 looks for an end in what it finds, and fails if there is none: this one never comes.
    return model, torch.cat([said, said[:, 8:12], PROMPT], 1), {"prompt_lookup_num_tokens": 4, "eos_token_id": models.VOCABULARY}


def test_every_token_of_assisted_decoding_has_its_statistics(telemetry: Telemetry, assisted: tuple[Any, Tensor, dict[str, Any]]) -> None:
    """Arrays by token are those of the tokens, and a step has the numbers of the last token that it has taken, which is the likeliest."""
    model, ids, options = assisted
    telemetry.instrument(model)
    got = model.generate(ids, max_new_tokens=18, do_sample=False, **options)
    start = ids.shape[1]
    logprobs, entropies = _forced(model, got, start)
    telemetry.check()
    attributes = telemetry.only()
    assert attributes[semconv.TOKEN_LOGPROBS] == pytest.approx(logprobs, abs=1e-3)
    assert attributes[semconv.TOKEN_ENTROPIES] == pytest.approx(entropies, abs=1e-3)
    assert len(attributes[semconv.TOKEN_INTERVALS]) == 18
    assert semconv.TOKENS_TRUNCATED not in attributes
    assert semconv.UNOBSERVED not in attributes
    steps: list[dict[str, Any]] = [dict(s.attributes or {}) for s in telemetry.steps() if _outermost(telemetry, s)]
    last = -1
    for step in steps:
        last += step[semconv.SPECULATIVE_ACCEPTED] + 1
        assert step[semconv.LOGITS_CHOSEN_RANK] == 1
        assert step[semconv.LOGITS_CHOSEN_LOGPROB] == pytest.approx(logprobs[last], abs=1e-3)
        assert step[semconv.STEP_ROWS] == 1
    assert last == 17


def test_statistics_of_assisted_decoding_are_of_raw_logits(telemetry: Telemetry, assisted: tuple[Any, Tensor, dict[str, Any]]) -> None:
    """Processors change the logits of a verification pass in place; what is told is what the model has said, as in any other decoding."""
    model, ids, options = assisted
    options = {**options, "max_new_tokens": 18, "do_sample": False, "repetition_penalty": 1.5, "suppress_tokens": [3, 4, 5]}
    telemetry.instrument(model)
    got = model.generate(ids, **options)
    logprobs, entropies = _forced(model, got, ids.shape[1])
    attributes = telemetry.only()
    assert attributes[semconv.TOKEN_LOGPROBS] == pytest.approx(logprobs, abs=1e-3)
    assert attributes[semconv.TOKEN_ENTROPIES] == pytest.approx(entropies, abs=1e-3)


def _outermost(telemetry: Telemetry, step: Any) -> bool:
    """Whether a step is of the request that no other one is around."""
    spans = {span.context.span_id: span for span in telemetry.spans() if span.context is not None}
    phase = spans[step.parent.span_id]
    assert phase.parent is not None
    return spans[phase.parent.span_id].parent is None


def test_drafted_and_accepted_tokens(telemetry: Telemetry) -> None:
    """They are those that went into the passes and those that came out of ``generate()``, on steps, request and counters."""
    model = _sharp()
    options = {"assistant_model": _draft(model), "max_new_tokens": 18, "do_sample": False}
    got, passes = _candidates(model, lambda: model.generate(PROMPT, **options))
    known, drafted, accepted = PROMPT.shape[1], [], []
    for number, ids in enumerate(passes):
        # The first pass holds the prompt as well, the others the last token that is known.
        drafts = ids[0, known if number == 0 else 1 :]
        same = (drafts == got[0, known : known + len(drafts)][: len(drafts)]).long().cumprod(0) if len(drafts) else drafts
        drafted.append(len(drafts))
        accepted.append(int(same.sum()))
        known += accepted[-1] + 1
    assert 0 < sum(accepted) < sum(drafted)
    telemetry.instrument(model)
    model.generate(PROMPT, **options)
    telemetry.check()
    steps = [dict(step.attributes or {}) for step in telemetry.steps()]
    assert [step[semconv.SPECULATIVE_DRAFTED] for step in steps] == drafted
    assert [step[semconv.SPECULATIVE_ACCEPTED] for step in steps] == accepted
    attributes = telemetry.only()
    assert attributes[semconv.SPECULATIVE_DRAFTED] == sum(drafted)
    assert attributes[semconv.SPECULATIVE_ACCEPTED] == sum(accepted)
    assert attributes[semconv.SPECULATIVE_ACCEPTANCE] == pytest.approx(sum(accepted) / sum(drafted))
    assert telemetry.metric_sum(semconv.M_SPECULATIVE_DRAFTED) == sum(drafted)
    assert telemetry.metric_sum(semconv.M_SPECULATIVE_ACCEPTED) == sum(accepted)


def test_an_end_token_among_the_drafts_is_accepted(telemetry: Telemetry) -> None:
    """A draft of the model itself is right, so all tokens but the first pass's own are accepted drafts, the end token included."""
    model = _sharp()
    free = model.generate(PROMPT, max_new_tokens=12, do_sample=False)[0, 7:].tolist()
    end = next(token for place, token in enumerate(free) if place in (4, 5, 6) and token not in free[:place])
    draft = copy.deepcopy(model)
    draft.generation_config.num_assistant_tokens, draft.generation_config.num_assistant_tokens_schedule = 20, "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    telemetry.instrument(model)
    got = model.generate(PROMPT, max_new_tokens=12, do_sample=False, eos_token_id=end, assistant_model=draft)
    telemetry.check()
    tokens = got.shape[1] - 7
    assert got[0, -1] == end
    assert telemetry.only()[semconv.SPECULATIVE_ACCEPTED] == tokens
    assert dict(telemetry.steps()[-1].attributes or {})[semconv.SPECULATIVE_ACCEPTED] == tokens


def test_ordinary_decoding_drafts_nothing(telemetry: Telemetry) -> None:
    """There is no number of drafted tokens, rather than 0."""
    model = _sharp()
    telemetry.instrument(model)
    model.generate(PROMPT, max_new_tokens=3, do_sample=False)
    assert semconv.SPECULATIVE_DRAFTED not in telemetry.only()
    assert semconv.M_SPECULATIVE_DRAFTED not in telemetry.metrics()


# ------------------------------------------------------------------------------------------------------------ rows that end one by one
class _Until(torch.nn.Module):
    """A criterion of the user's that ends each row after a number of tokens."""

    def __init__(self, start: int, lengths: list[int]) -> None:
        super().__init__()
        self.start, self.lengths = start, torch.tensor(lengths)

    def forward(self, ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return ids.shape[1] - self.start >= self.lengths


def _criterion(lengths: list[int]) -> Any:
    from transformers import StoppingCriteria, StoppingCriteriaList

    until = _Until(6, lengths)

    class Own(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return until(input_ids, scores)

    return StoppingCriteriaList([Own()])


def _means(raw: tuple[Tensor, ...], sequences: Tensor, lengths: list[int]) -> list[dict[str, float]]:
    """Means of each step over the rows that still run, in float64."""
    found = []
    for step, logits in enumerate(raw):
        rows = [row for row, length in enumerate(lengths) if step < length]
        values = logits[rows].double()
        shares, best = values.log_softmax(-1), values.sort(-1, descending=True).values
        chosen = shares.gather(1, sequences[rows, 6 + step, None])
        found.append({
            semconv.LOGITS_ENTROPY: float(-(shares.exp() * shares).sum(-1).mean()),
            semconv.LOGITS_MAX: float(best[:, 0].mean()),
            semconv.LOGITS_MARGIN: float((best[:, 0] - best[:, 1]).mean()),
            semconv.LOGITS_CHOSEN_LOGPROB: float(chosen.mean()),
        })
    return found


@pytest.mark.parametrize("rows", [4, 20], ids=["rows kept", "mean and first row kept"])
def test_rows_that_have_ended_are_not_counted(telemetry: Telemetry, rows: int) -> None:
    """Means, rank and series of a step are of the rows that run, whichever criterion has ended the others."""
    model = _sharp()
    lengths = [3, *[2 + place % 6 for place in range(rows - 2)], 8]
    ids = models.prompt(rows, 6)
    options = {"max_new_tokens": 8, "do_sample": False}
    plain = model.generate(ids, stopping_criteria=_criterion(lengths), output_logits=True, return_dict_in_generate=True, **options)
    want = _means(plain.logits, plain.sequences, lengths)
    telemetry.instrument(model, entropy_metric=True)
    assert torch.equal(model.generate(ids, stopping_criteria=_criterion(lengths), **options), plain.sequences)
    telemetry.check()
    steps: list[dict[str, Any]] = [dict(step.attributes or {}) for step in telemetry.steps()]
    for number, (step, right) in enumerate(zip(steps, want, strict=True)):
        assert {key: step[key] for key in right} == pytest.approx(right, rel=1e-3)
        assert step[semconv.STEP_ROWS] == sum(number < length for length in lengths)
    assert [step.get(semconv.LOGITS_CHOSEN_RANK) for step in steps] == [1] * 3 + [None] * 5
    if rows == 4:
        assert [len(step[semconv.LOGITS_ROWS[semconv.LOGITS_ENTROPY]]) for step in steps] == [step[semconv.STEP_ROWS] for step in steps]
    assert len(telemetry.only()[semconv.TOKEN_ENTROPIES]) == 3
    (point,) = telemetry.metrics()[semconv.M_ENTROPY]
    assert point[1] == 3
    assert telemetry.metric_sum(semconv.M_STEP_ROWS) == pytest.approx(sum(lengths) / 8)


def test_rows_of_beams_are_not_told(telemetry: Telemetry) -> None:
    """Which beams still run is not known outside of the search."""
    model = _sharp()
    telemetry.instrument(model)
    model.generate(models.prompt(2, 6), num_beams=3, max_new_tokens=4, do_sample=False)
    telemetry.check()
    steps = [dict(step.attributes or {}) for step in telemetry.steps()]
    assert all(semconv.STEP_ROWS not in step for step in steps)
    assert all(semconv.LOGITS_ENTROPY in step for step in steps)

