"""Closed rows of the overview: first token and pace, tokens, batches and cache, embeddings and plain passes, traces, spans."""

from __future__ import annotations

from inferspan import semconv

from ..charts import heat, table, traces
from ..frame import Row
from ..links import GPU, MODEL, to_dashboard, to_traces
from ..panels import Query, Says, Sized, trend
from ..queries import WINDOW, or_zero
from ..units import REQUESTS, SEQUENCES, TOKENS, TOKENS_J, TOKENS_S
from .queries import Q

__all__ = ["rows"]

SLOW_TRACES = to_traces("Slow traces", minDuration="${slow}")
QUANTILES = (0.5, 0.95, 0.99)


def _quantiles(key: str) -> list[Query]:
    return [Query(Q.quantile(share, key), f"p{share * 100:g}", exemplar=share == 0.95) for share in QUANTILES]


def _pair(title: str, key: str, says: Says, unit: str = "s") -> list[Sized]:
    """Quantiles beside the heat map of the same histogram."""
    distribution = says._replace(
        how=f"calls per bucket of `{key}`; the more, the stronger the colour.",
        do="Two bands are two kinds of requests: narrow the view by model or instance until one is left.",
    )
    return [
        trend(title, *_quantiles(key), unit=unit, says=says, width=12, links=[SLOW_TRACES]),
        heat(f"{title}: distribution", Q.heat(key), unit=unit, says=distribution, width=12),
    ]


def _pace() -> Row:
    ttft = Says(
        "Time from entry of generate() to the first token on the host, successful calls.",
        "quantiles of `gen_ai.server.time_to_first_token`.",
        "Rises with the length of prompts (*Tokens per call*) and with requests in flight. Open a dot to see which part took the time.",
        empty="no first token in this time range",
    )
    tpot = Says(
        "Time for each token after the first, successful calls.",
        "quantiles of `gen_ai.server.time_per_output_token`: (duration - TTFT) / (tokens - 1).",
        "Rises with batch size, length of the cache and held-down clocks of the GPU. *Model internals* says which layers take it.",
        empty="no call with two tokens in this time range",
    )
    chunks = Says(
        "What a caller with a streamer sees: time to the first chunk and between chunks.",
        "p95 of `gen_ai.client.inference.time_to_first_chunk` and `time_per_output_chunk`, or of their older names.",
        "Far above TTFT and TPOT: the streamer itself is slow.",
        empty="no call with a streamer in this time range",
    )
    first = Q.either(semconv.M_FIRST_CHUNK, semconv.M_LEGACY_FIRST_CHUNK, "_bucket", ["le"])
    later = Q.either(semconv.M_PER_CHUNK, semconv.M_LEGACY_PER_CHUNK, "_bucket", ["le"])
    streamed = trend(
        "Streamed chunks, p95",
        Query(f"histogram_quantile(0.95, {first})", "first chunk", exemplar=True),
        Query(f"histogram_quantile(0.95, {later})", "each further chunk"),
        unit="s",
        says=chunks,
        width=24,
        height=7,
        links=[SLOW_TRACES],
    )
    panels = [
        *_pair("Time to first token", semconv.M_SERVER_TTFT, ttft),
        *_pair("Time per output token", semconv.M_SERVER_TPOT, tpot),
        streamed,
    ]
    return Row("First token and pace", panels, closed=True)


RATES = Says(
    "Tokens read and written each second.",
    "rates of the usage counters, or of the sums of the older histogram `gen_ai.client.token.usage`.",
    "Far more input than output: prefill dominates; see TTFT.",
    empty="no tokens in this time range",
)
LENGTHS = Says(
    "Length of prompts and of outputs, all rows of a call together.",
    "quantiles of `gen_ai.client.inference.operation.*_tokens`, or of `gen_ai.client.token.usage`.",
    "Longer prompts make the first token late, longer outputs the whole call long.",
    empty="no call in this time range",
)
JOULE = Says(
    "Output tokens for each joule that the GPUs took, and what this means in kWh for a million tokens.",
    "tokens/s / sum of the rates of `hw.energy`, each GPU once. Energy is the whole card's: other programs on it count.",
    "Falls when batches are small: more rows at once cost hardly more energy.",
    empty="no GPU reported an energy counter",
)
HEAT_SAYS = LENGTHS._replace(
    what="Length of outputs, up to 262144 tokens.", how="calls per bucket of output tokens; the more, the stronger the colour."
)
LIKELY = r'le=~"\\d{1,6}(\\.0)?"'
"""Bounds up to 262144, however Prometheus writes them: those of the conventions go to 67 million, and would be empty rows."""


def _tokens() -> Row:
    energy = f"(sum ({Q.device_rate(semconv.M_ENERGY, named=False)}) > 0)"
    efficiency = trend(
        "Output tokens per joule",
        Query(f"{Q.tokens('output')} / {energy}", "tokens/J"),
        unit=TOKENS_J,
        says=JOULE,
        width=12,
        links=[to_dashboard(GPU)],
    )
    both = [Query(Q.tokens(direction), direction) for direction in ("input", "output")]
    per_call = [
        Query(f"histogram_quantile({share}, {Q.tokens_per_call(direction)})", f"{direction} p{share * 100:g}")
        for direction in ("input", "output")
        for share in (0.5, 0.95)
    ]
    output = Q.either(
        semconv.M_OPERATION_OUTPUT,
        semconv.M_LEGACY_USAGE,
        "_bucket",
        ["le"],
        matcher='gen_ai_token_type="output"',
        both=LIKELY,
        function="increase",
    )
    panels = [
        trend("Tokens/s", *both, unit=TOKENS_S, says=RATES, width=12),
        efficiency,
        trend("Tokens per call", *per_call, unit=TOKENS, says=LENGTHS, width=12),
        heat("Output length: distribution", output, unit=TOKENS, says=HEAT_SAYS, width=12),
    ]
    return Row("Tokens", panels, closed=True)


def _batches() -> Row:
    active = Says(
        "Calls of generate() that run at the same time.",
        "sum of `inferspan.generate.active` by model.",
        "More than one in a process: they share the GPU and each becomes slower. inferspan sees no queue in front of generate().",
        empty="no generate() in this time range",
    )
    batch = Says(
        "Rows of a call: how many prompts were handed to generate() at once.",
        "mean of `inferspan.batch.size` and of `inferspan.generate.step.rows` by model; their buckets are too wide for quantiles.",
        "Always 1 under load: batching would give more tokens for each joule. Running rows far below the batch size: rows that have ended"
        " wait for the longest one.",
        empty="no call in this time range",
    )
    cache = Says(
        "Key/value cache of the latest request, the largest of all processes.",
        "max of `inferspan.kv_cache.usage` by model.",
        "Grows with batch and length, and takes memory of the GPU: compare with *GPU and host*.",
        empty="no request with a cache in this time range",
    )
    reused = Says(
        "Share of the prompt tokens that were in a cache which the program passed in, by model.",
        "rate of `gen_ai.client.inference.usage.cache_read.input_tokens` / rate of `gen_ai.client.inference.usage.input_tokens`.",
        "Low in a conversation: the program computes earlier turns again; pass their cache to generate().",
        empty="no request with a reused cache in this time range",
    )
    drafts = Says(
        "Share of the drafted tokens that the model has accepted (assisted and prompt-lookup decoding), by model.",
        "rate of `inferspan.speculative.accepted_tokens` / rate of `inferspan.speculative.drafted_tokens`.",
        "Low: the draft costs more than it saves; draft fewer tokens at once, or with another model.",
        empty="no assisted decoding in this time range",
    )
    accepted, drafted = (
        Q.rate(key, by=["gen_ai_request_model"]) for key in (semconv.M_SPECULATIVE_ACCEPTED, semconv.M_SPECULATIVE_DRAFTED)
    )
    read, given = (Q.rate(key, by=["gen_ai_request_model"]) for key in (semconv.M_USAGE_CACHE_READ, semconv.M_USAGE_INPUT))
    size = f"max by (gen_ai_request_model) ({Q.series(semconv.M_KV_CACHE)})"
    label = "{{gen_ai_request_model}}"
    panels = [
        trend(
            "In flight by model",
            Query(Q.total(semconv.M_ACTIVE, by=["gen_ai_request_model"]), label),
            unit=REQUESTS,
            says=active,
            stacked=True,
            width=6,
        ),
        trend(
            "Batch size, mean",
            Query(Q.mean(semconv.M_BATCH_SIZE, by=["gen_ai_request_model"]), label),
            Query(Q.mean(semconv.M_STEP_ROWS, by=["gen_ai_request_model"]), f"{label}, still running"),
            unit=SEQUENCES,
            says=batch,
            width=6,
        ),
        trend("KV cache of the latest request", Query(size, label), unit="bytes", says=cache, width=6, links=[to_dashboard(GPU)]),
        trend(
            "Prompt tokens from a cache",
            Query(f"{read} / ({given} > 0)", label),
            unit="percentunit",
            says=reused,
            width=6,
            maximum=1,
        ),
        trend(
            "Drafted tokens accepted",
            Query(f"{accepted} / ({drafted} > 0)", label),
            unit="percentunit",
            says=drafts,
            width=6,
            maximum=1,
        ),
    ]
    return Row("Batches and cache", panels, closed=True)


FORWARD = Says(
    "Plain calls of a model, without generate(): classifiers, detectors, networks of one's own.",
    "rate and p95 of `inferspan.forward.duration` by model, host clock.",
    "Slower than before: see *Model internals* for the layers.",
    empty="no plain forward pass in this time range",
)
EMBEDDINGS = Says(
    "Calls for embeddings: how long and how many tokens.",
    "p95 of `gen_ai.client.embeddings.duration`; median of `gen_ai.client.embeddings.operation.input_tokens`.",
    "Long inputs are slow inputs: compare both.",
    empty="no call for embeddings in this time range",
)


def _other_calls() -> Row:
    name = "inferspan_model_name"
    label = "{{inferspan_model_name}}"
    duration, tokens = semconv.M_EMBEDDINGS_DURATION, semconv.M_EMBEDDINGS_INPUT
    model = "gen_ai_request_model"
    panels = [
        trend("Plain forward passes/s", Query(Q.count(semconv.M_FORWARD_DURATION, by=[name]), label), unit="ops", says=FORWARD, width=6),
        trend(
            "Plain forward passes, p95",
            Query(Q.quantile(0.95, semconv.M_FORWARD_DURATION, by=[name]), label, exemplar=True),
            unit="s",
            says=FORWARD,
            width=6,
            links=[to_dashboard(MODEL)],
        ),
        trend(
            "Embeddings, p95",
            Query(Q.quantile(0.95, duration, by=[model]), "{{gen_ai_request_model}}", exemplar=True),
            unit="s",
            says=EMBEDDINGS,
            width=6,
        ),
        trend(
            "Tokens per call for embeddings, median",
            Query(Q.quantile(0.5, tokens, by=[model]), "{{gen_ai_request_model}}"),
            unit=TOKENS,
            says=EMBEDDINGS,
            width=6,
        ),
    ]
    return Row("Plain forward passes and embeddings", panels, closed=True)


def _traces() -> Row:
    def says(what: str, search: str, do: str, empty: str) -> Says:
        return Says(
            what,
            f"search of Jaeger for the newest traces of *Traces of* with {search}, longest first.",
            do,
            empty=f"{empty}, or the data source has no Jaeger",
        )

    open_one = "Click a trace to open it: phases, steps, layers, and the values of the request."
    panels = [
        traces(
            "Slowest traces",
            says=says("Traces at least as long as *Slow from*.", "that duration", open_one, "no trace was that long"),
            minDuration="${slow}",
        ),
        traces(
            "Failed traces",
            says=says(
                "Traces of calls that ended with an exception.",
                f"`{semconv.FAILED}=true`",
                f"{open_one} `error.type` and the event of the request say what it was.",
                "no call failed",
            ),
            tags=f"{semconv.FAILED}=true",
        ),
        traces(
            "Traces with NaN or Inf",
            says=says(
                "Traces of calls in which values were not finite.",
                "`inferspan.nonfinite=true`",
                f"{open_one} The first module with such values is named.",
                "all values were finite",
            ),
            tags="inferspan.nonfinite=true",
        ),
        traces(
            "Kept traces",
            says=says("Traces that the program asked to keep.", "`inferspan.keep=true`", open_one, "no trace was marked"),
            tags="inferspan.keep=true",
        ),
    ]
    return Row("Traces", panels, closed=True)


def _spans() -> Row:
    says = Says(
        "All operations that were traced, those of other libraries too: calls/s, share of errors, p95.",
        "span metrics of the collector, without steps and modules, over the time range.",
        "An operation with errors or a long p95: click *Slow traces* in the panels above with its service chosen in *Traces of*.",
        empty="no call was traced in this time range, or the collector makes no span metrics (connector span_metrics)",
    )
    by = ["service_name", "span_name"]
    calls, failed = f"({Q.rate('traces_span_metrics_calls_total', by=by)} > 0)", 'status_code="STATUS_CODE_ERROR"'
    errors = f"{or_zero(Q.rate('traces_span_metrics_calls_total', failed, by=by), calls)} / {calls}"
    p95 = f"{Q.quantile(0.95, 'traces_span_metrics_duration_seconds', by=by)} and {calls}"
    operations = table(
        "Operations",
        *(Query(each.replace(WINDOW, "$__range"), "") for each in (calls, errors, p95)),
        says=says,
        columns={
            "service_name": {"displayName": "Service", "custom__width": 220},
            "span_name": {"displayName": "Operation"},
            "Value #A": {"displayName": "Calls/s", "unit": "reqps", "custom__width": 130},
            "Value #B": {"displayName": "Errors", "unit": "percentunit", "custom__width": 110, "decimals": 1},
            "Value #C": {"displayName": "p95", "unit": "s", "custom__width": 130},
        },
        sort_by="Calls/s",
    )
    return Row("Operations, from spans", [operations], closed=True)


def rows() -> list[Row]:
    """The rows, in order."""
    return [_pace(), _tokens(), _batches(), _other_calls(), _traces(), _spans()]
