"""Requests of continuous batching, each checked against the result that its caller got."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import inferspan
from inferspan import semconv
from tests.capture.batching.loops import PROMPTS, bounded, generate_batch, manager, of_request, requests, results, said_by, steps, tokens
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.matrix.pipelines import tokenizer


def _whole(telemetry: Telemetry) -> list[str]:
    """Names of requests and of what is under them."""
    trees = []
    for request in requests(telemetry):
        under = [span.name for span in telemetry.spans() if span.parent is not None and span.parent.span_id == request.context.span_id]
        trees.append(" ".join([request.name, *under]))
    return trees


def test_each_request_has_a_span_with_its_tokens(telemetry: Telemetry) -> None:
    """Ids, tokens and finish reasons are those of the results, which are those without telemetry."""
    want = tokens(generate_batch(models.llama()))
    model = models.llama()
    telemetry.instrument(model)
    found = generate_batch(model)
    assert tokens(found) == want
    telemetry.check()
    assert len(requests(telemetry)) == len(PROMPTS)
    for result in found:
        said = of_request(telemetry, result.request_id)
        assert said[semconv.INPUT_TOKENS] == len(result.prompt_ids)
        assert said[semconv.OUTPUT_TOKENS] == len(result.generated_tokens)
        assert said[semconv.DECODE_STEPS] == len(result.generated_tokens) - 1
        assert said[semconv.PREFILL_CHUNKS] == 1
        assert said[semconv.FINISH_REASONS] == ("length",)
        assert said[semconv.REQUEST_MAX_TOKENS] == 5
    assert _whole(telemetry) == ["text_completion prefill decode"] * len(PROMPTS)


def test_each_request_is_analysed_by_its_tokens(telemetry: Telemetry) -> None:
    """Repetition needs no logits, which the loop does not show."""
    model = models.llama()
    telemetry.instrument(model)
    for result in generate_batch(model):
        said = of_request(telemetry, result.request_id)
        assert said[semconv.ANALYSIS_UNIQUE_TOKENS] == len({*result.generated_tokens})
        assert semconv.ANALYSIS_CONFIDENCE["average"] not in said


def test_no_pass_of_the_loop_is_a_request(telemetry: Telemetry) -> None:
    """Forward passes in the loop, and those that warm it up, are steps of the batch and no requests of their own."""
    model = models.llama()
    telemetry.instrument(model)
    generate_batch(model)
    assert telemetry.forwards() == []


def test_times_of_a_request_are_in_order(telemetry: Telemetry) -> None:
    """The queue comes before the first token, and the tokens' times end where the request does."""
    model = models.llama()
    telemetry.instrument(model)
    generate_batch(model)
    for span in requests(telemetry):
        said = said_by(span)
        seconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e9
        assert 0 <= said[semconv.TIME_IN_QUEUE] < said[semconv.TTFT] < seconds
        assert len(said[semconv.TOKEN_INTERVALS]) == 5
        assert sum(said[semconv.TOKEN_INTERVALS]) == pytest.approx(seconds, abs=1e-6)
        assert said[semconv.TPOT] == pytest.approx((seconds - said[semconv.TTFT]) / 4, abs=1e-6)


def test_an_end_token_stops_a_request(telemetry: Telemetry) -> None:
    """The reason is the end token where the last token is one, else the limit."""
    first = tokens(generate_batch(models.llama()))[0]
    end = first[2]
    model = models.llama()
    telemetry.instrument(model)
    found = generate_batch(model, eos_token_id=end)
    stopped = [result for result in found if result.generated_tokens[-1] == end]
    assert found[0] in stopped
    for result in found:
        reason = "stop" if result in stopped else "length"
        assert of_request(telemetry, result.request_id)[semconv.FINISH_REASONS] == (reason,)


def test_metrics_count_each_request_once(telemetry: Telemetry) -> None:
    """Tokens, durations and the queue are counted for each request, and none stays in flight."""
    model = models.llama()
    handle = telemetry.instrument(model)
    generate_batch(model)
    telemetry.check()
    metrics = telemetry.metrics()
    assert telemetry.metric_sum(semconv.M_USAGE_INPUT) == sum(map(len, PROMPTS))
    assert telemetry.metric_sum(semconv.M_USAGE_OUTPUT) == 5 * len(PROMPTS)
    assert telemetry.metric_sum(semconv.M_ACTIVE) == 0
    for name in (semconv.M_SERVER_DURATION, semconv.M_SERVER_TTFT, semconv.M_SERVER_TPOT, semconv.M_TIME_IN_QUEUE):
        assert [value for _, value in metrics[name]] == [len(PROMPTS)], name
    assert handle.summary().requests == len(PROMPTS)
    assert handle.summary().forwards == 0


def test_the_span_of_each_caller_is_the_parent(telemetry: Telemetry) -> None:
    """Callers on several threads, each in a span of its own, get their requests in their own traces; none is left current."""
    model = models.llama()
    telemetry.instrument(model)
    tracer = telemetry.tracer_provider.get_tracer("app")

    def call(number: int, loop: Any) -> None:
        with tracer.start_as_current_span(f"caller {number}"), inferspan.context(conversation_id=f"talk {number}"):
            loop.add_request(PROMPTS[number], request_id=f"mine {number}")

    with manager(model) as loop:
        threads = [threading.Thread(target=call, args=(number, loop)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results(loop, 3)
    spans = {span.context.span_id: span for span in telemetry.spans() if span.context is not None}
    for request in requests(telemetry):
        number = str(said_by(request)[semconv.RESPONSE_ID])[-1]
        assert request.parent is not None
        assert spans[request.parent.span_id].name == f"caller {number}"
        assert said_by(request)[semconv.CONVERSATION_ID] == f"talk {number}"


def test_the_callers_own_response_id_counts(telemetry: Telemetry) -> None:
    """An id from the caller's context is not replaced by that of the loop."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model) as loop:
        with inferspan.context(response_id="mine"):
            loop.add_request(PROMPTS[0])
        results(loop, 1)
    assert telemetry.only()[semconv.RESPONSE_ID] == "mine"


def test_a_long_prompt_is_computed_in_chunks(telemetry: Telemetry) -> None:
    """A prompt of 100 tokens takes four steps of at most 32 tokens, and its first token comes with the last of them."""
    model = models.llama()
    telemetry.instrument(model)
    (result,) = generate_batch(model, [[3 + number % 60 for number in range(100)]], loop=bounded(max_batch_tokens=32))
    said = of_request(telemetry, result.request_id)
    assert said[semconv.PREFILL_CHUNKS] == 4
    assert said[semconv.DECODE_STEPS] == 4
    assert said[semconv.OUTPUT_TOKENS] == 5
    prefill = [step for step in steps(telemetry) if step.name == semconv.SPAN_PREFILL_STEP]
    assert [said_by(step)[semconv.BATCH_TOKENS] for step in prefill] == [32, 32, 32, 4]


def test_a_shared_prefix_is_read_from_the_cache(telemetry: Telemetry) -> None:
    """A second request with the same 40 tokens reads the two whole blocks of 16 of them."""
    model = models.llama()
    telemetry.instrument(model)
    prompt = [3 + number % 60 for number in range(40)]
    with manager(model) as loop:
        for request_id in ("first", "second"):
            loop.add_request(prompt, request_id=request_id)
            results(loop, 1)
    assert semconv.CACHE_READ_INPUT_TOKENS not in of_request(telemetry, "first")
    said = of_request(telemetry, "second")
    assert said[semconv.CACHE_READ_INPUT_TOKENS] == 32
    assert said[semconv.KV_CACHE_REUSED_TOKENS] == 32
    assert said[semconv.INPUT_TOKENS] == 40
    assert telemetry.metric_sum(semconv.M_USAGE_CACHE_READ) == 32


def test_a_full_cache_preempts_requests(telemetry: Telemetry) -> None:
    """Requests that do not fit together are taken out and computed again: same tokens, each counted once, preemptions counted."""
    prompts = [[3 + (number + row) % 60 for number in range(30)] for row in range(4)]
    loop = {"num_blocks": 9, "allow_block_sharing": False, "safety_margin": 0.0}
    want = tokens(generate_batch(models.llama(), prompts, loop=bounded(**loop), max_new_tokens=30))
    model = models.llama()
    telemetry.instrument(model)
    found = generate_batch(model, prompts, loop=bounded(**loop), max_new_tokens=30)
    assert tokens(found) == want
    telemetry.check()
    preemptions = sum(said_by(span).get(semconv.PREEMPTIONS, 0) for span in requests(telemetry))
    assert preemptions > 0
    assert telemetry.metric_sum(semconv.M_PREEMPTIONS) == preemptions
    for result in found:
        said = of_request(telemetry, result.request_id)
        assert (said[semconv.INPUT_TOKENS], said[semconv.OUTPUT_TOKENS]) == (30, 30)
        assert len(said[semconv.TOKEN_INTERVALS]) == 30


def test_several_sequences_of_a_request(telemetry: Telemetry) -> None:
    """``num_return_sequences`` gives one request with the tokens of each of them, in the order of the results."""
    model = models.llama()
    telemetry.instrument(model)
    found = generate_batch(model, [[5, 6, 7]], num_return_sequences=3, do_sample=True, loop=bounded(seed=1))
    assert len(found) == 3
    telemetry.check()
    said = telemetry.only()
    assert said[semconv.REQUEST_CHOICE_COUNT] == 3
    assert said[semconv.SEQUENCE_OUTPUT_TOKENS] == tuple(len(one.generated_tokens) for one in found)
    assert said[semconv.FINISH_REASONS] == ("length",) * 3
    assert said[semconv.INPUT_TOKENS] == 3


def test_a_streamed_request(telemetry: Telemetry) -> None:
    """A request whose tokens are delivered one by one ends once, and has the times of its chunks."""
    model = models.llama()
    telemetry.instrument(model)
    with manager(model) as loop:
        loop.add_request(PROMPTS[0], request_id="streamed", streaming=True)
        results(loop, 1)
    said = of_request(telemetry, "streamed")
    assert said[semconv.REQUEST_STREAM] is True
    assert said[semconv.OUTPUT_TOKENS] == 5
    assert said[semconv.TIME_TO_FIRST_CHUNK] == said[semconv.TTFT]


class _Words:
    """A tokenizer that writes ids."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return " ".join(map(str, ids))


def test_content_is_captured_on_demand_only(telemetry: Telemetry) -> None:
    """Prompt and output are on the span where the settings ask for them, and nowhere else."""
    for capture in ("NO_CONTENT", "SPAN_ONLY"):
        model = models.llama()
        with telemetry.instrument(model, _Words(), capture_content=capture):
            (result,) = generate_batch(model, [[5, 6, 7]])
        said = said_by(requests(telemetry)[-1])
        assert (semconv.TOKEN_IDS in said) is (capture == "SPAN_ONLY")
        assert ("5 6 7" in str(said.get(semconv.INPUT_MESSAGES))) is (capture == "SPAN_ONLY")
        assert (" ".join(map(str, result.generated_tokens)) in str(said.get(semconv.OUTPUT_MESSAGES))) is (capture == "SPAN_ONLY")


def test_latencies_under_the_names_of_vllm(telemetry: Telemetry) -> None:
    """Queue, prefill and decode add up to the whole request."""
    model = models.llama()
    telemetry.instrument(model, compat_vllm_latency=True)
    generate_batch(model, [[5, 6, 7]])
    said = telemetry.only()
    parts = [said[key] for key in (semconv.LATENCY_QUEUE, semconv.LATENCY_PREFILL, semconv.LATENCY_DECODE)]
    assert sum(parts) == pytest.approx(said[semconv.LATENCY_E2E], abs=1e-6)


def test_prompts_that_a_chat_template_has_made(telemetry: Telemetry) -> None:
    """Ids in lists are known to be a chat, one or several, also as a copy; those that were changed are not."""
    model, words = models.llama(), tokenizer()
    telemetry.instrument(model)
    user = [{"role": "user", "content": "hello there"}]
    one = words.apply_chat_template(user)["input_ids"]
    several = words.apply_chat_template([[{"role": "user", "content": "be kind"}], [{"role": "user", "content": "again"}]])["input_ids"]
    flat = words.apply_chat_template([{"role": "system", "content": "be kind"}, *user], return_dict=False)
    generate_batch(model, [[*one], *several, flat, [*one, 9]])
    known = {span[semconv.RESPONSE_ID]: span[semconv.OPERATION_NAME] for span in map(said_by, requests(telemetry))}
    assert [known[name] for name in sorted(known)] == ["chat"] * 4 + ["text_completion"]


def test_messages_of_a_chat_are_captured_on_demand(telemetry: Telemetry) -> None:
    """Captured messages keep their roles."""
    model, words = models.llama(), tokenizer()
    telemetry.instrument(model, words, capture_content="SPAN_ONLY")
    generate_batch(model, [words.apply_chat_template([{"role": "system", "content": "be kind"}])["input_ids"]])
    assert '"system"' in str(said_by(requests(telemetry)[0])[semconv.INPUT_MESSAGES])
