"""Row of "Model internals" about continuous batching: how full the batch and its cache are, and who waits."""

from __future__ import annotations

from inferspan import semconv as s

from ..frame import Row
from ..links import OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, trend
from ..units import REQUESTS, TOKENS
from .queries import REQUEST_MODEL, WHOLE, of

__all__ = ["row"]

EMPTY = "no continuous batching in this time range"


def _quantiles(key: str, *, exemplar: bool = False) -> list[Query]:
    legend = of(REQUEST_MODEL)
    return [
        Query(WHOLE.quantile(x, key, by=[REQUEST_MODEL]), f"{legend} p{x * 100:g}", exemplar=exemplar and x == 0.95) for x in (0.5, 0.95)
    ]


def _batch() -> list[Sized]:
    requests = Says(
        "How many requests a step of the loop serves.",
        "quantiles over steps of `inferspan.batch.requests`.",
        "Few while others wait: the cache or `max_batch_tokens` is the limit, not the card.",
        empty=EMPTY,
    )
    tokens = Says(
        "How many positions a step computes: one for each request that decodes, and the chunks of prompts.",
        "quantiles over steps of `inferspan.batch.tokens`.",
        "p95 far above p50: long prompts are computed beside the decoding of others, which slows these down.",
        empty=EMPTY,
    )
    return [
        trend("Requests in a step", *_quantiles(s.M_BATCH_REQUESTS), unit=REQUESTS, width=12, says=requests),
        trend("Tokens in a step", *_quantiles(s.M_BATCH_TOKENS), unit=TOKENS, width=12, says=tokens),
    ]


def _queue() -> list[Sized]:
    waiting = Says(
        "How many requests wait for a place in the batch, by process.",
        "`inferspan.batch.waiting` as of the last steps.",
        "It grows without end: more requests arrive than the process can serve.",
        empty=EMPTY,
    )
    queued = Says(
        "How long a request waits from its arrival to its first step.",
        "quantiles of `inferspan.time_in_queue`.",
        "It is part of the time to first token. Above that of the prefill: more processes, or a larger cache.",
        empty=EMPTY,
    )
    return [
        trend(
            "Waiting requests", Query(WHOLE.total(s.M_BATCH_WAITING, by=[REQUEST_MODEL, "instance"]), of(REQUEST_MODEL, "instance")),
            unit=REQUESTS, width=12, says=waiting,
        ),
        trend(
            "Time in the queue", *_quantiles(s.M_TIME_IN_QUEUE, exemplar=True), unit="s", width=12, says=queued,
            links=[to_dashboard(OVERVIEW)],
        ),
    ]


def _cache() -> list[Sized]:
    used, limit = (WHOLE.total(key, by=[REQUEST_MODEL, "instance"]) for key in (s.M_KV_BLOCKS_USED, s.M_KV_BLOCKS_LIMIT))
    blocks = Says(
        "Share of the paged cache that holds keys and values, by process; shared prefixes that nobody uses any more count as well.",
        "`inferspan.kv_cache.blocks.used` / `inferspan.kv_cache.blocks.limit`.",
        "Close to 1: requests wait or are preempted. A larger cache (`num_blocks`), or shorter contexts.",
        empty=EMPTY,
    )
    preempted = Says(
        "How often a request was taken out of the batch because the cache was full.",
        "rate of `inferspan.preemptions`.",
        "Each of them is computed again from its prompt. Anything lasting: the cache is too small for the load.",
        empty="none, as it should be",
    )
    return [
        trend(
            "Cache blocks in use", Query(f"{used} / ({limit} > 0)", of(REQUEST_MODEL, "instance")), unit="percentunit", maximum=1, width=12,
            says=blocks,
        ),
        trend(
            "Preemptions", Query(WHOLE.rate(s.M_PREEMPTIONS, by=[REQUEST_MODEL]), of(REQUEST_MODEL)), unit="ops", width=12, says=preempted
        ),
    ]


def row() -> Row:
    """The row, closed: only programs with continuous batching have anything in it."""
    return Row("Continuous batching", [*_batch(), *_queue(), *_cache()], closed=True)
