"""Rows of "Model internals" below the first page: certainty, memory, and what inferspan itself costs."""

from __future__ import annotations

from inferspan import semconv as s

from ..charts import heat
from ..frame import Row
from ..links import GPU, to_dashboard
from ..panels import Query, Says, Sized, trend
from ..units import NATS
from .queries import NO_STEPS, REQUEST_MODEL, WHOLE, Q, of, overhead

__all__ = ["rows"]

NEEDS = "Needs the setting `entropy_metric` (`INFERSPAN_ENTROPY_METRIC=true`)."
NO_ENTROPY = "certainty is not measured: set INFERSPAN_ENTROPY_METRIC=true or entropy_metric=True"


def _quantiles(key: str, *shares: float) -> list[Query]:
    """Exemplars at p95 only."""
    legend = of(REQUEST_MODEL)
    return [Query(Q.quantile(x, key, by=[REQUEST_MODEL]), f"{legend} p{x * 100:g}", exemplar=x == 0.95) for x in shares]


def _certainty() -> list[Sized]:
    entropy = Says(
        "How undecided the model is: 0 nats are one certain token, ln(n) nats are n tokens that are equally likely.",
        f"quantiles over steps of the entropy of the softmax, first row of the batch. {NEEDS}",
        "A jump after a release: another checkpoint, template or quantisation. Close to 0 for long: the model repeats itself.",
        empty=NO_ENTROPY,
    )
    spread = Says(
        "How many steps had which entropy, in nats.",
        f"increase of the buckets of `inferspan.logits.entropy`. {NEEDS}",
        "A dot leads to the trace of a request with such a step.",
        empty=NO_ENTROPY,
    )
    likeliest = Says(
        "Probability of the likeliest token, at the median step and at the least certain 5 %.",
        f"quantiles over steps, first row of the batch. {NEEDS}",
        "p5 falls: more of the text is guesswork. Traces with high entropy show for which prompts.",
        empty=NO_ENTROPY,
    )
    return [
        trend("Entropy of the next token", *_quantiles(s.M_ENTROPY, 0.5, 0.95), unit=NATS, says=entropy),
        heat("Entropy of the next token by step", Q.heat(s.M_ENTROPY), unit=NATS, exemplar=True, says=spread),
        trend("Likeliest token", *_quantiles(s.M_TOP1, 0.05, 0.5), unit="percentunit", maximum=1, says=likeliest),
    ]


def _memory() -> list[Sized]:
    cache = f"max by (instance, {REQUEST_MODEL}) ({WHOLE.series(s.M_KV_CACHE)})"
    cards = f"sum by (instance) ({WHOLE.device(s.M_GPU_MEMORY_LIMIT, by=['instance'], named=False)})"
    size = Says(
        "Keys and values of all layers at the end of the last request, by process.",
        "largest value of `inferspan.kv_cache.usage`.",
        "It grows with batch and length. If it fills the card: shorter contexts, a quantised or a sliding cache.",
        empty="no request with a cache in this time range",
    )
    share = Says(
        "The same as a share of the memory of the cards that the process uses.",
        "cache of the last request / memory of all cards that the process reports.",
        "Weights and activations need the rest: above a half there is little room for longer prompts.",
        empty="no GPU, or no request with a cache",
    )
    of_cards = Query(f"sum by (instance) ({cache}) / on (instance) ({cards} > 0)", "{{instance}}")
    to_gpu = [to_dashboard(GPU)]
    return [
        trend("Key/value cache", Query(cache, of(REQUEST_MODEL, "instance")), unit="bytes", width=12, says=size, links=to_gpu),
        trend(
            "Key/value cache of device memory",
            of_cards,
            unit="percentunit",
            width=12,
            maximum=1,
            decimals=1,
            limits=((0.5, "orange"),),
            says=share,
            links=to_gpu,
        ),
    ]


def _cost() -> list[Sized]:
    share = Says(
        "Share of the requests' time that inferspan itself took, on the threads of the model.",
        "`inferspan.telemetry.overhead` / duration of generate() calls and plain forward passes.",
        'Above 2 %: fewer details, such as `steps="sampled"`, `modules="none"` or `logits=False`.',
        empty=NO_STEPS,
    )
    seconds = Says(
        "The same in seconds for each call of generate().",
        "`inferspan.telemetry.overhead` / calls of generate(); that of plain forward passes is in it as well.",
        "It grows with the number of steps of a call and of measured modules in a step.",
        empty=NO_STEPS,
    )
    each = f"{WHOLE.rate(s.M_OVERHEAD, by=['service_name'])} / ({WHOLE.count(s.M_SERVER_DURATION, by=['service_name'])} > 0)"
    return [
        trend(
            "Overhead of inferspan over time",
            Query(overhead(), "overhead"),
            unit="percentunit",
            width=12,
            limits=((0.02, "orange"),),
            says=share,
        ),
        trend("Overhead for each call", Query(each, "{{service_name}}"), unit="s", width=12, says=seconds),
    ]


def rows() -> list[Row]:
    """The rows, all closed."""
    return [
        Row("Certainty (setting entropy_metric)", _certainty(), closed=True),
        Row("Memory", _memory(), closed=True),
        Row("What inferspan costs", _cost(), closed=True),
    ]
