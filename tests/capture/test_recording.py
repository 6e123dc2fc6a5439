"""The recording interface, proved by a second adapter: a greedy loop written by hand tells what ``generate()`` does."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from opentelemetry import context as otel_context
from torch import Tensor

from inferspan import guard, semconv
from inferspan.capture import recording
from inferspan.capture.call import current
from inferspan.capture.generate.outcome import kv_cache_bytes
from inferspan.capture.recording import UNRECORDED, Outcome
from inferspan.capture.target import target_of
from inferspan.records import Failure, ModuleCalls, ModuleInfo
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.test_whole_trace import as_text

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = models.prompt(2, 6)
TOKENS = 9
FAILURE = Failure("LookupError", "theirs", "")


def _start(model: Any, **options: Any) -> Any:
    owner = target_of(model)
    assert owner is not None
    return recording.start("generate", owner, root=model, **{"operation": semconv.OPERATION_TEXT_COMPLETION, **options})


def generate(model: Any) -> Tensor:
    """The loop of transformers."""
    found: Tensor = model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), do_sample=False, max_new_tokens=TOKENS)
    return found


def greedy(model: Any) -> Tensor:
    """The same loop, written by hand: the second adapter."""
    request = _start(model)
    ids, options = PROMPT, {"attention_mask": torch.ones_like(PROMPT), "use_cache": True}
    cache = None
    request.begin_phase(semconv.SPAN_PREFILL)
    for step in range(TOKENS):
        inputs = ids if cache is None else ids[:, -1:]
        positions = torch.arange(ids.shape[1] - inputs.shape[1], ids.shape[1]).expand_as(inputs)
        request.begin_step(inputs=inputs)
        outputs = model(inputs, past_key_values=cache, position_ids=positions, logits_to_keep=1, **options)
        chosen = outputs.logits[:, -1].argmax(-1, keepdim=True)
        request.end_step(outputs.logits, chosen)
        if step == 0:
            request.end_phase()
            request.begin_phase(semconv.SPAN_DECODE)
        cache, ids = outputs.past_key_values, torch.cat([ids, chosen], 1)
        options["attention_mask"] = torch.ones_like(ids)
    request.finish(
        Outcome(
            input_tokens=[PROMPT.shape[1]] * 2,
            output_tokens=[TOKENS] * 2,
            finish_reasons=[semconv.FINISH_LENGTH] * 2,
            cache_bytes=kv_cache_bytes(cache),
            tokens_of_first_row=True,
            sequences=ids[:, PROMPT.shape[1] :].tolist(),
            attributes={
                semconv.DO_SAMPLE: False,
                semconv.NUM_BEAMS: 1,
                semconv.MODEL_CACHE: "dynamic",
                semconv.REQUEST_MAX_TOKENS: TOKENS,
            },
        )
    )
    return ids


def _emitted(loop: Any, **settings: Any) -> tuple[Tensor, Telemetry]:
    telemetry = Telemetry()
    model = models.llama(eos_token_id=None)
    telemetry.instrument(model, **settings)
    with torch.no_grad():
        loop(model)
        result = loop(model)
    telemetry.close()
    telemetry.check()
    return result, telemetry


@pytest.mark.parametrize(
    "settings",
    [{}, {"logits": False}, {"steps": "sampled"}, {"every_step": True, "output_stats": True}, {"max_spans_per_trace": 12}],
    ids=["default", "no statistics", "sampled steps", "all modules", "small budget"],
)
def test_a_loop_by_hand_tells_what_generate_tells(settings: dict[str, Any]) -> None:
    """Spans, their tree and attributes, metrics and token counts are those of ``generate()``."""
    want, theirs = _emitted(generate, **settings)
    got, by_hand = _emitted(greedy, **settings)
    assert torch.equal(got, want)
    assert as_text(by_hand.spans()) == as_text(theirs.spans())
    assert by_hand.metrics() == theirs.metrics()
    assert by_hand.usage() == theirs.usage() == [(12, 18), (12, 18)]


def test_statistics_are_those_of_generate() -> None:
    """Numbers that the text of a trace masks are the same as well."""
    keys = (semconv.LOGITS_ENTROPY, semconv.LOGITS_CHOSEN_RANK, semconv.LOGITS_CHOSEN_LOGPROB)
    seen = []
    for loop in (generate, greedy):
        _, telemetry = _emitted(loop)
        seen.append([[(step.attributes or {})[key] for key in keys] for step in telemetry.steps()])
    for theirs, by_hand in zip(*seen, strict=True):
        assert by_hand == pytest.approx(theirs, rel=1e-4)


# --------------------------------------------------------------------------------------------------------- the interface
def _names(telemetry: Telemetry) -> list[tuple[str, Any]]:
    return [(span.name, (span.attributes or {}).get(semconv.ERROR_TYPE)) for span in telemetry.spans()]


def _forward(model: Any, request: Any) -> None:
    with torch.no_grad():
        request.begin_step(inputs=PROMPT)
        logits = model(PROMPT).logits
        request.end_step(logits, logits[:, -1].argmax(-1))


def test_what_is_left_open_ends_with_the_failure(telemetry: Telemetry) -> None:
    """A step and a phase that nobody has ended have the failure of the request."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    request = _start(model)
    request.begin_phase(semconv.SPAN_PREFILL)
    request.begin_step(rows=2, tokens=6)
    request.finish(Outcome(failure=FAILURE))
    assert _names(telemetry) == [("text_completion", "LookupError"), ("prefill", "LookupError"), ("prefill_step", "LookupError")]
    telemetry.check()


def test_a_step_that_fails_alone(telemetry: Telemetry) -> None:
    """A failure of a step that the program survives stays with the step."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    request = _start(model)
    request.begin_step(rows=1, tokens=6)
    request.end_step(failure=FAILURE)
    request.finish(Outcome())
    assert _names(telemetry) == [("text_completion", None), ("prefill", None), ("prefill_step", "LookupError")]
    telemetry.check()


def test_steps_without_phases_have_the_usual_ones(telemetry: Telemetry) -> None:
    """An adapter that knows no phases gets prefill until the first token is known, then decode."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    request = _start(model)
    for _ in range(2):
        _forward(model, request)
    request.finish(Outcome())
    names = [name for name, _ in _names(telemetry)]
    assert names == ["text_completion", "prefill", "prefill_step", "decode", "decode_step"]
    telemetry.check()


def test_tokens_may_come_after_the_step(telemetry: Telemetry) -> None:
    """A step that was ended without its logits has their shape and statistics once they are told."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    for late in (False, True):
        request = _start(model)
        request.begin_step(inputs=PROMPT)
        with torch.no_grad():
            logits = model(PROMPT).logits
        if late:
            request.end_step()
        request.end_step(logits, logits[:, -1].argmax(-1))
        request.finish(Outcome())
    early, late_one = (dict(step.attributes or {}) for step in telemetry.steps())
    assert semconv.LOGITS_ENTROPY in late_one
    assert late_one == early
    telemetry.check()


def test_times_are_those_of_the_clock_that_is_given(telemetry: Telemetry) -> None:
    """Time is injected: spans begin and end at the readings of the clock of the request."""
    model = models.llama()
    telemetry.instrument(model, modules="none", logits=False)
    readings = count(1_000, 1_000)
    request = _start(model, now=lambda: next(readings), offset=lambda: 999_000)
    request.begin_phase(semconv.SPAN_PREFILL, at=request.start)
    request.begin_step(rows=1, tokens=6)
    request.end_step()
    request.close(at=50_000)
    request.finish(Outcome())
    times = {span.name: (span.start_time, span.end_time) for span in telemetry.spans()}
    assert times["text_completion"] == (1_000_000, 1_049_000)
    assert times["prefill"] == (1_000_000, 1_049_000)
    begun, ended = times["prefill_step"]
    assert begun is not None
    assert ended is not None
    assert 1_000_000 < begun < ended < 1_049_000
    assert begun % 1_000 == 0


def test_modules_of_an_adapter(telemetry: Telemetry) -> None:
    """Module calls that an adapter tells hang under the step that they ran in, and those told outside of one under the phase."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    request = _start(model)
    request.begin_phase(semconv.SPAN_PREFILL)
    encoder, head = (ModuleInfo(name, "Linear", None, name) for name in ("encoder", "head"))
    moment = request.steps.now()
    request.add_modules(ModuleCalls([(0, -1, encoder, moment, moment + 1, (), (), None, None)]))
    request.begin_step(rows=1, tokens=6)
    moment = request.steps.now()
    request.add_modules(ModuleCalls([(0, -1, head, moment, moment + 1, (), (), None, None)]))
    request.end_step()
    request.finish(Outcome())
    names = {span.context.span_id: span.name for span in telemetry.spans() if span.context}
    parents = {span.name: names[span.parent.span_id] for span in telemetry.spans() if span.parent}
    assert parents["encoder"] == "prefill"
    assert parents["head"] == "prefill_step"
    telemetry.check()


def test_a_request_ends_once(telemetry: Telemetry) -> None:
    """A second end does nothing, and what comes after the end is no part of the request."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    request = _start(model)
    _forward(model, request)
    request.finish(Outcome())
    request.finish(Outcome(failure=FAILURE))
    assert current.call is None
    request.begin_phase(semconv.SPAN_DECODE)
    request.begin_step()
    request.end_step()
    request.add_modules(ModuleCalls([[0] * 9]))
    request.end_phase()
    assert [name for name, _ in _names(telemetry)] == ["text_completion", "prefill", "prefill_step"]
    telemetry.check()


def test_a_request_that_an_interrupt_has_left(telemetry: Telemetry) -> None:
    """A request that its adapter has not ended ends with the one around it, and says so."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    outer, inner = _start(model), _start(model)
    inner.begin_step(rows=1, tokens=6)
    outer.finish(Outcome())
    inner.finish(Outcome())
    assert current.call is None
    assert [name for name, failure in _names(telemetry) if failure == "_OTHER"] == ["text_completion", "prefill", "prefill_step"]
    telemetry.check()


def test_nothing_is_done_where_telemetry_is_off(telemetry: Telemetry) -> None:
    """Where the caller has switched telemetry off the request is false, and its calls do nothing."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    try:
        request = _start(model)
        assert request is UNRECORDED
        assert not request
        request.begin_phase(semconv.SPAN_PREFILL)
        _forward(model, request)
        request.add_modules(ModuleCalls())
        request.end_phase()
        request.close()
        request.finish(Outcome())
        request.fail(LookupError())
    finally:
        otel_context.detach(token)
    assert telemetry.spans() == []


def test_errors_of_ours_are_contained(telemetry: Telemetry, contained: list[guard.Swallowed]) -> None:
    """What an adapter gets wrong costs telemetry only, and the request ends."""
    model = models.llama()
    telemetry.instrument(model, modules="none")
    odd: Any = object()
    request = _start(model)
    request.begin_step(inputs=odd)
    request.end_step(odd, odd)
    request.finish(Outcome(input_tokens=odd))
    assert [name for name, _ in _names(telemetry)][:1] == ["text_completion"]
    assert contained
    contained.clear()
    telemetry.check(complaints=True)
