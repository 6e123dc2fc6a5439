"""What detail is recorded and what it says: budgets, numbering, statistics against float64, clocks, and what is not paid for."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inferspan import semconv
from inferspan.settings import SettingsError
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support import attached as on


def _exactly(tokens: int, **more: Any) -> dict[str, Any]:
    return {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, **more}


def _generate(model: Any, *arguments: Any, **options: Any) -> Any:
    with torch.no_grad():
        return model.generate(*arguments, **options)


def _kinds(telemetry: Telemetry) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for span in telemetry.spans():
        kinds["module" if semconv.MODULE_NAME in (span.attributes or {}) else span.name.split()[0]] += 1
    return kinds


def _sampled(steps: int) -> list[int]:
    """Steps that are recorded with their modules by default: 0, then every power of two."""
    return [step for step in range(steps) if step == 0 or step & (step - 1) == 0]


# -------------------------------------------------------------------------------------------------------------------------- budget
@pytest.mark.parametrize("tokens", [1, 2, 9, 60])
@pytest.mark.parametrize("budget", [1, 3, 5, 10, 20, 40, 60, 100, 160, 400, 2000])
@pytest.mark.parametrize("every", [False, True], ids=["sampled", "every step"])
def test_budget(telemetry: Telemetry, tokens: int, budget: int, every: bool) -> None:
    """Spans of a request stay within the budget (request and phases always), and made + left out = asked for."""
    model = models.llama()
    options = {"span_hard_cap": budget, "max_spans_per_trace": budget, "every_step": every}
    telemetry.instrument(model, **options)
    _generate(model, models.prompt(), **_exactly(tokens))
    telemetry.check()
    made = len(telemetry.spans())
    modules = 6
    asked = 1 + (2 if tokens > 1 else 1) + tokens + modules * (tokens if every else len(_sampled(tokens)))
    assert made <= max(budget, 3)
    assert made + telemetry.only().get(semconv.SPANS_DROPPED, 0) == asked, _kinds(telemetry)


@pytest.mark.parametrize("budget", [1, 4, 5, 6, 9, 50])
def test_budget_of_a_forward(telemetry: Telemetry, budget: int) -> None:
    """A plain forward pass keeps to the budget as well, and says if it left something out."""
    model = models.llama()
    telemetry.instrument(model, max_spans_per_trace=budget)
    with torch.no_grad():
        model(models.prompt())
    telemetry.check()
    made = len(telemetry.spans())
    assert made <= max(budget, 1)
    assert bool(telemetry.only(telemetry.forwards()).get(semconv.SPANS_DROPPED)) is (made < 7)


@pytest.mark.parametrize(
    ("settings", "modules", "steps"),
    [
        ({}, 6 * 5, 9),
        ({"modules": "none"}, 0, 9),
        ({"steps": "sampled"}, 6 * 5, 5),
        ({"steps": "none"}, 0, 0),
        ({"steps": "sampled", "modules": "none"}, 0, 0),
        ({"modules": ["model.layers.*.mlp"]}, 2 * 5, 9),
        ({"modules": ["*.mlp", "model.layers.0.*", "lm_head"], "every_step": True}, None, 9),
        ({"every_step": True}, 6 * 9, 9),
        ({"preset": "light"}, 0, 0),
    ],
)
def test_settings(telemetry: Telemetry, settings: dict[str, Any], modules: int | None, steps: int) -> None:
    """Which steps and modules get spans follows the settings; counts and latencies do not depend on them."""
    model = models.llama()
    telemetry.instrument(model, **settings)
    _generate(model, models.prompt(), **_exactly(9))
    telemetry.check()
    kinds = _kinds(telemetry)
    assert kinds[semconv.SPAN_PREFILL_STEP] + kinds[semconv.SPAN_DECODE_STEP] == steps
    assert modules is None or kinds["module"] == modules
    attributes = telemetry.only()
    assert telemetry.usage() == [(6, 9)] and attributes[semconv.DECODE_STEPS] == 8
    assert attributes[semconv.TPOT] > 0 and attributes[semconv.TTFT] > 0


def test_every_module(telemetry: Telemetry) -> None:
    """``modules="all"`` is every module but the root and its lists, nested as they are called."""
    model = models.llama()
    telemetry.instrument(model, modules="all")
    _generate(model, models.prompt(), **_exactly(1))
    telemetry.check()
    seen = {(span.attributes or {})[semconv.MODULE_NAME] for span in telemetry.modules()}
    wanted = {name for name, module in model.named_modules() if name and not isinstance(module, torch.nn.ModuleList)}
    assert seen == wanted
    by_id = {span.context.span_id: span for span in telemetry.spans() if span.context}
    for span in telemetry.modules():
        assert span.parent is not None
        above = (by_id[span.parent.span_id].attributes or {}).get(semconv.MODULE_NAME, "")
        assert str((span.attributes or {})[semconv.MODULE_NAME]).startswith(f"{above}." if above else "")


def test_pattern_that_matches_nothing(telemetry: Telemetry) -> None:
    """A pattern without a match is refused, and the model is untouched."""
    model = models.llama()
    # A class of this test alone: models of others may wait for the collector.
    model.__class__ = type("OwnLlama", (type(model),), {})
    before = dict(vars(type(model)))
    with pytest.raises(SettingsError, match="matches no module"):
        telemetry.instrument(model, modules=["nothing.*"])
    assert not model._forward_hooks and dict(vars(type(model))) == before
    _generate(model, models.prompt(), **_exactly(2))
    assert telemetry.spans() == []


# ------------------------------------------------------------------------------------------------------------------------ numbers
def _truth(logits: Tensor, chosen: Tensor) -> dict[str, float]:
    """Statistics of a step's raw logits [rows, vocabulary] in float64, as means over the rows."""
    exact = logits.double()
    logprobs = torch.log_softmax(exact, dim=-1)
    top = torch.topk(torch.softmax(exact, dim=-1), 2).values
    picked = logprobs.gather(1, chosen[:, None])[:, 0]
    top_logits = torch.topk(exact, 2).values
    return {
        semconv.LOGITS_ENTROPY: float((-(logprobs.exp() * logprobs).sum(-1)).mean()),
        semconv.LOGITS_CHOSEN_LOGPROB: float(picked.mean()),
        semconv.LOGITS_TOP1: float(top[:, 0].mean()),
        semconv.LOGITS_MAX: float(exact.max(-1).values.mean()),
        semconv.LOGITS_MIN: float(exact.min(-1).values.mean()),
        semconv.LOGITS_MEAN: float(exact.mean(-1).mean()),
        "margin": float((top_logits[:, 0] - top_logits[:, 1]).mean()),
    }


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logit_statistics_against_float64(telemetry: Telemetry, rows: int, sample: bool, dtype: torch.dtype) -> None:
    """Each step's statistics are those of the raw logits that the same run returned, and the arrays those of its first row."""
    model = models.llama().to(dtype)
    telemetry.instrument(model)
    torch.manual_seed(11)
    out = _generate(
        model,
        models.prompt(rows, 6),
        max_new_tokens=7,
        min_new_tokens=7,
        do_sample=sample,
        temperature=1.3 if sample else None,
        top_k=5 if sample else None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    telemetry.check()
    chosen = out.sequences[:, 6:]
    steps = telemetry.steps()
    assert len(steps) == 7 == len(out.logits)
    for number, (span, logits) in enumerate(zip(steps, out.logits, strict=True)):
        attributes = span.attributes or {}
        for key, value in _truth(logits, chosen[:, number]).items():
            if key in attributes:
                assert attributes[key] == pytest.approx(value, rel=2e-3, abs=2e-3), (number, key)
        assert {semconv.LOGITS_ENTROPY, semconv.LOGITS_CHOSEN_LOGPROB} <= set(attributes)
    request = telemetry.only()
    first = [_truth(logits[:1], chosen[:1, number]) for number, logits in enumerate(out.logits)]
    assert request[semconv.TOKEN_LOGPROBS] == pytest.approx([one[semconv.LOGITS_CHOSEN_LOGPROB] for one in first], rel=2e-3, abs=2e-3)
    assert request[semconv.TOKEN_ENTROPIES] == pytest.approx([one[semconv.LOGITS_ENTROPY] for one in first], rel=2e-3, abs=2e-3)
    assert len(request[semconv.TOKEN_INTERVALS]) == 7 and semconv.TOKENS_TRUNCATED not in request


def test_arrays_end_with_the_first_row(telemetry: Telemetry) -> None:
    """Where the first row ends before the others, its arrays end with it."""
    model = models.llama()
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.zeros(64).index_fill(0, torch.tensor([2]), 3.0))
    telemetry.instrument(model)
    lengths = set()
    for seed in range(6):
        torch.manual_seed(seed)
        _generate(model, models.prompt(3, 6), max_new_tokens=20, do_sample=True)
        attributes: dict[str, Any] = dict(telemetry.requests()[-1].attributes or {})
        first = attributes[semconv.SEQUENCE_OUTPUT_TOKENS][0]
        lengths.add(first)
        for key in (semconv.TOKEN_LOGPROBS, semconv.TOKEN_ENTROPIES, semconv.TOKEN_INTERVALS):
            assert len(attributes[key]) == first, key
    assert len(lengths) > 2
    telemetry.check()


def test_clocks(telemetry: Telemetry) -> None:
    """Latencies are those of the spans: the first token ends the prefill, the time per token is the rest over the other tokens."""
    model = models.llama()
    telemetry.instrument(model)
    _generate(model, models.prompt(2, 6), **_exactly(6))
    telemetry.check()
    attributes, (request,) = telemetry.only(), telemetry.requests()
    (prefill,), (decode,) = telemetry.spans(semconv.SPAN_PREFILL), telemetry.spans(semconv.SPAN_DECODE)

    def seconds(span: Any) -> float:
        return float(span.end_time - span.start_time) / 1e9

    assert prefill.start_time == request.start_time and prefill.end_time == decode.start_time and decode.end_time == request.end_time
    assert attributes[semconv.TTFT] == pytest.approx(seconds(prefill), abs=1e-6)
    assert attributes[semconv.TPOT] == pytest.approx(seconds(decode) / 5, abs=1e-6)
    assert attributes[semconv.TOKENS_PER_SECOND] == pytest.approx(12 / seconds(request), rel=1e-3)
    assert attributes[semconv.PREFILL_TOKENS_PER_SECOND] == pytest.approx(12 / attributes[semconv.TTFT], rel=1e-6)
    intervals = attributes[semconv.TOKEN_INTERVALS]
    assert intervals[0] == pytest.approx(attributes[semconv.TTFT], abs=1e-6)
    # Whole nanoseconds: the sum of the seconds may differ from their difference in the last bit.
    assert round(sum(intervals) * 1e9) <= (request.end_time or 0) - (request.start_time or 0)
    lengths = [(span.attributes or {})[semconv.SEQUENCE_LENGTH] for span in telemetry.steps()]
    assert lengths == [6, 7, 8, 9, 10, 11]
    starts = [(span.start_time or 0, span.end_time or 0) for span in telemetry.steps()]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(starts)), "steps overlap"


# -------------------------------------------------------------------------------------------------------------------- what it costs
class Operations(TorchDispatchMode):
    """Counts what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def _operations(model: Any, **options: Any) -> Counter[str]:
    with Operations() as counted:
        _generate(model, models.prompt(2, 6), **options)
    return counted.seen


def test_unsampled_requests_cost_no_operation() -> None:
    """A request that is not sampled runs the very operations of the bare model, with no hook attached, and is still counted."""
    telemetry = Telemetry(ALWAYS_OFF)
    model = models.llama()
    bare = _operations(model, **_exactly(5))
    telemetry.instrument(model)
    attached: list[int] = []
    probe = model.model.layers[0].register_forward_hook(
        lambda *_: attached.append(sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.model.modules()))
    )
    seen = _operations(model, **_exactly(5))
    probe.remove()
    counting = {"aten.sum.dim_IntList", "aten.slice.Tensor", "aten._local_scalar_dense.default", "aten.select.int"}
    assert {name: count for name, count in (seen - bare).items() if name not in counting} == {}
    assert set(attached) == {1}
    assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == 10
    assert telemetry.spans() == []
    telemetry.close()
    telemetry.check()


def test_hooks_are_attached_in_recorded_steps_only(telemetry: Telemetry) -> None:
    """Steps without module spans run with nothing of ours on a module below the root."""
    model = models.llama()
    telemetry.instrument(model)
    attached: list[int] = []
    probe = model.model.layers[0].register_forward_hook(lambda *_: attached.append(sum(on.attached(model.model).values())))
    _generate(model, models.prompt(), **_exactly(9))
    probe.remove()
    assert [step for step, count in enumerate(attached) if count] == _sampled(9)
    assert set(on.attached(model.model).values()) == {0}
    telemetry.check()


def test_sampling_by_ratio_with_threads_of_detail(telemetry: Telemetry) -> None:
    """With a ratio, sampled requests have their detail, the others nothing, and all of them are counted."""
    half = Telemetry(ParentBased(TraceIdRatioBased(0.5)))
    model = models.llama()
    half.instrument(model)
    for _ in range(24):
        _generate(model, models.prompt(), **_exactly(3))
    half.check()
    assert 0 < len(half.requests()) < 24
    assert len(half.steps()) == 3 * len(half.requests())
    assert half.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == 72
    half.close()


def test_nothing_of_a_request_is_kept(telemetry: Telemetry) -> None:
    """Prompt, result, cache, streamer, failed inputs and the model die when the program drops them, without the cyclic collector."""

    class Streamer:
        def put(self, value: Any) -> None: ...

        def end(self) -> None: ...

    gc.collect()
    gc.disable()
    try:
        model = models.llama()
        handle = telemetry.instrument(model, output_stats=True)
        ids, streamer = models.prompt(1, 6), Streamer()
        out = _generate(model, ids, streamer=streamer, return_dict_in_generate=True, output_logits=True, **_exactly(4))
        cache = getattr(out, "cache", None)
        cache = out.past_key_values if cache is None else cache
        seen: list[Any] = [weakref.ref(one) for one in (ids, streamer, out.sequences, out.logits[0], out.logits[3], cache)]
        del ids, streamer, out, cache
        assert [one() for one in seen] == [None] * 6
        bad = torch.full((1, 6), 9999)
        with pytest.raises(IndexError):
            _generate(model, bad, **_exactly(4))
        reference = weakref.ref(bad)
        del bad
        assert reference() is None
        alive = weakref.ref(model)
        del model
        if alive() is not None:
            gc.collect()  # transformers models hold cycles of their own
        assert alive() is None
        handle.uninstrument()
    finally:
        gc.enable()
    telemetry.check()


def test_metrics_of_steps_and_modules(telemetry: Telemetry) -> None:
    """Each step has its entropy and largest probability, each module call its duration; NaN values are counted where they arise."""
    model = models.llama()
    telemetry.instrument(model, model_name="m", modules="all", every_step=True, output_stats=True, entropy_metric=True, module_metric=True)
    prompt = models.prompt(1, 6)
    _generate(model, prompt, **_exactly(4))
    steps = telemetry.steps()
    for name, key in (("inferspan.logits.entropy", semconv.LOGITS_ENTROPY), ("inferspan.logits.top1_probability", semconv.LOGITS_TOP1)):
        assert telemetry.metric_sum(name) == pytest.approx(sum((span.attributes or {})[key] for span in steps))  # type: ignore[misc]
    mlp = [span for span in telemetry.modules() if (span.attributes or {})[semconv.MODULE_NAME] == "model.layers.1.mlp"]
    labels: dict[str, Any] = {
        "inferspan.model.name": "m",
        "inferspan.module.name": "model.layers.1.mlp",
        "inferspan.module.type": "LlamaMLP",
        "inferspan.module.layer.index": 1,
    }
    assert len(mlp) == 4
    seconds = sum((span.end_time or 0) - (span.start_time or 0) for span in mlp) / 1e9
    assert telemetry.metric_sum("inferspan.module.duration", **labels) == pytest.approx(seconds)
    assert telemetry.metric_sum("inferspan.numerics.nonfinite") == 0
    # Not by a hook: a module with a hook of the program's is left alone once something was compiled in the process.
    model.model.layers[1].mlp.down_proj.weight.data.fill_(float("nan"))
    with torch.no_grad():
        model(prompt)
    telemetry.spans()
    assert telemetry.metric_sum("inferspan.numerics.nonfinite", kind="nan", **labels) == 6 * model.config.hidden_size
    elsewhere: dict[str, Any] = {"inferspan.module.layer.index": 0}
    assert telemetry.metric_sum("inferspan.numerics.nonfinite", **elsewhere) == 0
    telemetry.check()
