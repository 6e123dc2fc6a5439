"""Which requests keep their detail: each kind of them, with what is inside them, and what it costs when nothing is kept."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from inferspan.buffer import Buffer
from inferspan.capture.generate import step_attributes as step_facts
from inferspan.capture.generate import step_rows
from inferspan.capture.logits import statistics as logits
from inferspan.records import RequestEnd
from tests.cases.models import llama, prompt
from tests.cases.telemetry import Telemetry

DECISION = {semconv.DETAIL_KEPT, semconv.DETAIL_RULE, semconv.DETAIL_SPANS, semconv.KEEP}


def _decision(span: ReadableSpan) -> dict[str, Any]:
    return {key: value for key, value in (span.attributes or {}).items() if key in DECISION}


def _kept(rule: str) -> dict[str, Any]:
    return {semconv.DETAIL_KEPT: True, semconv.DETAIL_RULE: rule, semconv.KEEP: True}


def _left_out(rule: str, spans: int) -> dict[str, Any]:
    return {semconv.DETAIL_KEPT: False, semconv.DETAIL_RULE: rule, semconv.DETAIL_SPANS: spans}


class _Does:
    """A logits processor that does something in its second step."""

    def __init__(self, action: Callable[[], Any] = lambda: None) -> None:
        self.action = action
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            self.action()
        return scores


def _fail() -> None:
    raise ValueError("this one fails")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _generate(model: Any, action: Callable[[], Any] = lambda: None, tokens: int = 4) -> None:
    with suppress(ValueError, KeyboardInterrupt):
        model.generate(prompt(1, 5), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, logits_processor=[_Does(action)])


def _mark_now() -> None:
    trace.get_current_span().set_attribute(semconv.KEEP, True)


# ------------------------------------------------------------------------------------------------------- which are kept
@pytest.mark.parametrize(
    ("settings", "action", "rule"),
    [
        pytest.param({"keep": "slow", "slow_after": 0.0}, None, "slow", id="slow"),
        pytest.param({"keep": "slow", "slow_first_token": 0.0}, None, "slow_first_token", id="slow first token"),
        pytest.param({"keep": "slow", "slow_after": 0.0, "slow_first_token": 0.0}, None, "slow,slow_first_token", id="slow twice"),
        pytest.param({"keep": "errors"}, _fail, "errors", id="failed"),
        pytest.param({"keep": "errors"}, _interrupt, "errors", id="interrupted"),
        pytest.param({"keep": "slow,errors", "slow_after": 0.0}, _fail, "slow,errors", id="slow and failed"),
        pytest.param({"keep": "marked"}, _mark_now, "marked", id="marked while it runs"),
        pytest.param({"keep": "errors"}, _mark_now, "marked", id="marked, which always counts"),
        pytest.param({"keep": "slow", "mark": True}, None, "marked", id="all are marked"),
    ],
)
def test_what_matters_is_kept(telemetry: Telemetry, settings: dict[str, Any], action: Any, rule: str) -> None:
    """A request of a kind that is asked for has all of its detail, says why, and is marked for a tail sampler."""
    model = llama()
    telemetry.instrument(model, **settings)
    _generate(model, action or (lambda: None))
    (request,) = telemetry.requests()
    names = [span.name for span in telemetry.spans()]
    assert _decision(request) == _kept(rule)
    steps = 4 if action not in (_fail, _interrupt) else 2
    assert (names.count("prefill"), names.count("decode"), len(telemetry.steps())) == (1, 1, steps)
    assert telemetry.modules()
    telemetry.check()


@pytest.mark.parametrize(
    ("settings", "action"),
    [
        ({"keep": "slow", "slow_after": 60.0, "slow_first_token": 60.0}, None),
        ({"keep": "slow"}, None),
        ({"keep": "slow", "slow_quantile": 0.5}, _fail),
        ({"keep": "errors,nonfinite"}, None),
        ({"keep": "marked"}, _fail),
        ({"keep": "nonfinite"}, _interrupt),
    ],
)
def test_what_does_not_matter_is_its_request_span(telemetry: Telemetry, settings: dict[str, Any], action: Any) -> None:
    """Of any other request there is the request span, which says how much was recorded and which rules did not apply."""
    model, twin = llama(), llama()
    with telemetry.instrument(twin):
        _generate(twin, action or (lambda: None))
    whole, (always,) = telemetry.spans(), telemetry.requests()
    telemetry.instrument(model, **settings)
    _generate(model, action or (lambda: None))
    (request,) = (span for span in telemetry.spans() if span not in whole)
    assert _decision(request) == _left_out(settings["keep"], len(whole) - 1)
    varying = {semconv.TPOT, semconv.TOKENS_PER_SECOND, semconv.TOKEN_INTERVALS, *DECISION}
    assert set(request.attributes or {}) - varying == set(always.attributes or {}) - varying
    assert _decision(always) == {}
    telemetry.check()


def test_nonfinite(telemetry: Telemetry) -> None:
    """NaN in the logits keeps a request, and so does NaN in the output of a module, where those are looked at."""
    model = llama()
    telemetry.instrument(model, keep="nonfinite")
    _generate(model)
    with torch.no_grad():
        model.lm_head.weight[0].fill_(float("nan"))
    _generate(model)
    assert [_decision(span).get(semconv.DETAIL_RULE) for span in telemetry.requests()] == ["nonfinite", "nonfinite"]
    assert [_decision(span)[semconv.DETAIL_KEPT] for span in telemetry.requests()] == [False, True]
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    telemetry.instrument(plain, keep="nonfinite", modules="all", output_stats=True)
    plain(torch.zeros(1, 4))
    plain(torch.full((1, 4), float("nan")))
    assert [_decision(span) for span in telemetry.forwards()] == [_left_out("nonfinite", 2), _kept("nonfinite")]
    telemetry.check()


def test_marked_by_the_caller(telemetry: Telemetry) -> None:
    """``inferspan.context()`` marks the requests inside it; other values than true do not."""
    model = nn.Linear(4, 4)
    telemetry.instrument(model, keep="marked")
    values: tuple[Any, ...] = (True, False, "true", 1)
    for value in values:
        with inferspan.context(**{semconv.KEEP: value}):
            model(torch.zeros(1, 4))
    assert [_decision(span)[semconv.DETAIL_KEPT] for span in telemetry.forwards()] == [True, False, False, False]


def test_what_head_sampling_drops_stays_dropped() -> None:
    """A request that is not sampled is not there, whatever becomes of it, and nothing is held or decided."""
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    model = llama()
    handle = telemetry.instrument(model, keep="slow,errors", slow_after=0.0)
    marked: Any = {semconv.KEEP: True}
    with inferspan.context(**marked):
        _generate(model, _fail)
    assert (telemetry.spans(), handle.summary().errors) == ([], 1)
    assert (handle.summary().detail_kept, handle.summary().detail_left_out) == (0, 0)
    telemetry.close()


def test_suppressed(telemetry: Telemetry) -> None:
    """Where telemetry is switched off there is nothing to decide."""
    model = nn.Linear(4, 4)
    handle = telemetry.instrument(model, keep="slow", slow_after=0.0)
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    model(torch.zeros(1, 4))
    otel_context.detach(token)
    assert (telemetry.spans(), handle.summary().detail_kept) == ([], 0)


def test_the_summary_counts(telemetry: Telemetry) -> None:
    """``handle.summary()`` says of how many requests the detail was kept; without a decision it says nothing."""
    model, twin = llama(), llama()
    handle, other = telemetry.instrument(model, keep="errors"), telemetry.instrument(twin)
    for action in (_fail, lambda: None, lambda: None):
        _generate(model, action)
    _generate(twin)
    assert (handle.summary().detail_kept, handle.summary().detail_left_out) == (1, 2)
    assert str(handle.summary()).endswith("detail of 1 of 3 requests kept")
    assert "kept" not in str(other.summary())


# ------------------------------------------------------------------------------------------------------ requests inside
class _Outer(nn.Module):
    """Runs another model that is instrumented itself, and carries on where that one fails."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = [inner]

    def forward(self, x: Tensor) -> Tensor:
        with suppress(ValueError):
            self.inner[0](self.first(x))
        return x


class _Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        if self.fails:
            raise ValueError("inside")
        return y


@pytest.mark.parametrize(
    ("outer", "inner", "fails", "kept"),
    [
        ("errors", "errors", False, False),
        ("errors", "errors", True, True),
        ("errors", "always", False, False),
        ("nonfinite", "errors", True, False),
        ("always", "errors", False, True),
    ],
)
def test_the_outermost_decides_for_all(telemetry: Telemetry, outer: str, inner: str, fails: bool, kept: bool) -> None:
    """Detail of a request inside another one is kept or left out with it, by the outer one's settings; its span is always there."""
    inside = _Inner()
    inside.fails = fails
    model = _Outer(inside)
    telemetry.instrument(inside, keep=inner, modules="all")
    telemetry.instrument(model, keep=outer, modules="all")
    model(torch.zeros(1, 4))
    outermost, nested = telemetry.forwards()
    assert len(telemetry.modules()) == (2 if kept else 0)
    assert _decision(nested) == {}
    if outer != "always":
        assert _decision(outermost) == (_kept("errors") if kept else _left_out(outer, 2))
    telemetry.check()


def test_detached_while_another_thread_is_inside(telemetry: Telemetry) -> None:
    """Detaching another thread's pass decides nothing: it is decided when the pass returns, also about the request inside it."""
    entered, ended = threading.Event(), threading.Event()
    inside = _Inner()
    model = _Outer(inside)

    def wait(*_: Any) -> None:
        entered.set()
        assert ended.wait(20)

    inside.layer.register_forward_hook(wait)
    telemetry.instrument(inside, keep="errors", modules="all")
    handle = telemetry.instrument(model, keep="errors", modules="all")
    thread = threading.Thread(target=model, args=(torch.zeros(1, 4),))
    thread.start()
    assert entered.wait(20)
    handle.uninstrument()
    ended.set()
    thread.join(20)
    outermost, _ = telemetry.forwards()
    assert _decision(outermost) == _left_out("errors", 2)
    assert telemetry.modules() == []


def test_each_thread_has_its_own(telemetry: Telemetry) -> None:
    """Requests that run side by side on one model are decided about one by one."""
    model = llama()
    telemetry.instrument(model, keep="errors")
    together = threading.Barrier(2)

    def run(action: Callable[[], Any]) -> None:
        _generate(model, lambda: (together.wait(20), action()))

    threads = [threading.Thread(target=run, args=(action,)) for action in (_fail, lambda: None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    by_request = {span.context.trace_id: span for span in telemetry.requests() if span.context}
    kept = {trace_id for trace_id, span in by_request.items() if (span.attributes or {}).get(semconv.FAILED)}
    assert {span.context.trace_id for span in telemetry.steps() if span.context} == kept and len(by_request) == 2
    telemetry.check()


def test_a_forked_child_decides_for_itself(telemetry: Telemetry) -> None:
    """A lock that another thread held at that moment does not stop the child."""
    model = nn.Linear(4, 4)
    handle = telemetry.instrument(model, keep="slow", slow_quantile=0.5)
    lock = handle._recorder.flight._lock
    lock.acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads
        child = os.fork()
    if not child:
        signal.alarm(30)
        model(torch.zeros(1, 4))
        os._exit(handle.summary().detail_left_out)
    lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


# ------------------------------------------------------------------------------------------------------------- its cost
def test_what_is_not_kept_costs_nothing_but_the_appends(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """No detail is queued, no thread woken for it, no text of a statistic made; what is queued is the durations of the steps, once."""
    queued: list[Any] = []
    texts = count()
    put = Buffer.put
    made = logits.attributes

    def noting(original: Any) -> Any:
        def call(buffer: Any, item: Any, *weight: int, **how: bool) -> Any:
            queued.append(item[1])
            return original(buffer, item, *weight, **how)

        return call

    monkeypatch.setattr(Buffer, "put", noting(put))
    monkeypatch.setattr(step_facts, "logit_attributes", lambda *args, **options: (next(texts), made(*args, **options))[1])
    monkeypatch.setattr(step_rows, "LIVE", 3)
    model, plain = llama(), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    telemetry.instrument(model, keep="errors", every_step=True, thresholds="confidence=0,logit_spread=0")
    telemetry.instrument(plain, keep="errors", modules="all")
    plain(torch.zeros(1, 4))
    assert queued == []
    _generate(model, tokens=12)
    inferspan.flush()
    assert [type(item) for item in queued] == [RequestEnd] and next(texts) == 0
    _generate(model, _fail, tokens=12)
    inferspan.flush()
    assert len(queued) == 3 and next(texts) > 1


def test_metrics_are_of_all_requests() -> None:
    """Durations of modules and steps, entropies and counts of NaN do not depend on what is kept."""

    def measure(**settings: Any) -> tuple[Any, ...]:
        telemetry = Telemetry()
        model, plain = llama(), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        options = {"module_metric": True, "output_stats": True, "entropy_metric": True, **settings}
        telemetry.instrument(model, **options)
        telemetry.instrument(plain, modules="all", **options)
        _generate(model)
        plain(torch.full((1, 4), float("nan")))
        inferspan.flush()
        data: Any = telemetry.reader.get_metrics_data()
        counts = {
            metric.name: sum(getattr(point, "count", None) or point.value for point in metric.data.data_points)
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
            if metric.name in (semconv.M_MODULE_DURATION, semconv.M_STEP_DURATION, semconv.M_ENTROPY, semconv.M_NONFINITE)
        }
        detail = len(telemetry.modules())
        telemetry.close()
        return counts, detail

    whole, modules = measure()
    assert whole[semconv.M_NONFINITE] == 8 and whole[semconv.M_STEP_DURATION] == 4 and modules > 2
    assert measure(keep="marked") == (whole, 0)
    assert measure(keep="marked", mark=True) == (whole, modules)
