"""Rows of "Model internals" below the steps: tokens of a pass, and stages of multimodal models and pipelines."""

from __future__ import annotations

from inferspan import semconv as s

from ..charts import heat
from ..frame import Row
from ..links import OVERVIEW, to_dashboard
from ..panels import Query, Says, Sized, trend
from ..units import TOKENS
from .queries import NO_STEPS, PREFILL, REQUEST_MODEL, STAGE_NAME, WHOLE, Q, of, tokens_per_pass

__all__ = ["rows"]

NO_STAGES = "no multimodal model or pipeline has run in this time range"


def _tokens() -> list[Sized]:
    tokens = Says(
        "How many tokens a forward pass gives, over the batch, by model.",
        "generated tokens / forward passes of generate().",
        "It falls with smaller batches and failed calls, and rises with assisted decoding.",
        empty=NO_STEPS,
    )
    prompts = Says(
        "How many tokens of prompts a prefill pass gets, over the batch.",
        "prompt tokens, those in a cache included / prefill passes.",
        "The time to first token grows with it.",
        empty=NO_STEPS,
    )
    prefills = WHOLE.count(s.M_STEP_DURATION, PREFILL, by=[REQUEST_MODEL])
    taken = f"{WHOLE.tokens('input', [REQUEST_MODEL])} / ({prefills} > 0)"
    given = Query(tokens_per_pass(REQUEST_MODEL), of(REQUEST_MODEL))
    return [
        trend("Tokens per pass over time", given, unit=TOKENS, width=12, says=tokens),
        trend("Prompt tokens per prefill", Query(taken, of(REQUEST_MODEL)), unit=TOKENS, width=12, says=prompts),
    ]


def _stages() -> list[Sized]:
    legend = of(REQUEST_MODEL, STAGE_NAME)
    quantiles = [
        Query(Q.quantile(x, s.M_STAGE_DURATION, by=[REQUEST_MODEL, STAGE_NAME]), f"{legend} p{x * 100:g}", exemplar=x == 0.95)
        for x in (0.5, 0.95)
    ]
    time = Says(
        "How long the encoders and projectors of a multimodal model take, and the parts of a pipeline. The axis is logarithmic.",
        "quantiles of `inferspan.stage.duration`, host clock.",
        "An encoder as long as the prefill: the time to first token is that of the images."
        " Decoding as long as denoising: fewer steps do not help.",
        empty=NO_STAGES,
    )
    share = Says(
        "How the time of stages is divided among them, in each second.",
        "rate of the sum of `inferspan.stage.duration` by stage.",
        "The largest area is where faster code or another device helps most.",
        empty=NO_STAGES,
    )
    spread = Says(
        "How many stages took how long.",
        "increase of the buckets of `inferspan.stage.duration`.",
        "Choose one model above: two bands of one stage are two sizes of images. A dot leads to the trace of one.",
        empty=NO_STAGES,
    )
    taken = Query(Q.rate(s.M_STAGE_DURATION, part="_sum", by=[STAGE_NAME]), of(STAGE_NAME))
    return [
        trend("Stages", *quantiles, unit="s", logarithmic=True, says=time, links=[to_dashboard(OVERVIEW)]),
        trend("Time of stages in each second", taken, unit="s", stacked=True, says=share),
        heat("Stages: distribution", Q.heat(s.M_STAGE_DURATION), unit="s", exemplar=True, says=spread),
    ]


def rows() -> list[Row]:
    """The rows, both closed."""
    return [
        Row("Tokens of a pass", _tokens(), closed=True),
        Row("Stages of multimodal models and pipelines", _stages(), closed=True),
    ]
