"""Stages of a model, as an adapter records them under a running request: spans on every path, the budget, and the metric."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from inferspan import semconv
from inferspan.capture import recording
from inferspan.capture.recording import Outcome
from inferspan.capture.target import target_of
from inferspan.records import ModuleBatch, ModuleCalls, ModuleInfo, PhaseKey
from tests.cases import models
from tests.cases.telemetry import Telemetry


def _start(telemetry: Telemetry, **settings: Any) -> Any:
    model = models.llama()
    telemetry.instrument(model, modules="none", model_name="small", **settings)
    owner = target_of(model)
    assert owner is not None
    request = recording.start("generate", owner, root=model, operation=semconv.OPERATION_GENERATE_CONTENT)
    request.kept = model  # type: ignore[union-attr]
    return request


def _denoise(request: Any, steps: int = 2) -> None:
    """A pipeline: text encoding, denoising steps inside their stage with a module call, decoding."""
    now = request.steps.now()
    request.add_stage("text_encode", now, now + 10)
    denoise = request.new_stage()
    for index in range(steps):
        number = request.new_stage()
        begin = now + 20 + 10 * index
        call = (0, -1, ModuleInfo("unet", "UNet", None, "unet"), begin + 1, begin + 2, (), (), None, None)
        request.pending.append(ModuleBatch(None, PhaseKey("denoise_step", number), request.offset, ModuleCalls([call]), {}))
        request.add_stage("denoise_step", begin, begin + 9, number=number, parent=denoise, attributes={"inferspan.denoise.index": index}, counted=False)
    request.add_stage("denoise", now + 20, now + 20 + 10 * steps, number=denoise, attributes=lambda: {"rows": 2})
    request.add_stage("vae_decode", now + 100, now + 110, failure="LookupError")
    while request.steps.now() < now + 200:
        pass


def _tree(telemetry: Telemetry) -> list[str]:
    spans = {span.context.span_id: span for span in telemetry.spans() if span.context}

    def path(span: ReadableSpan) -> str:
        above = spans.get(span.parent.span_id) if span.parent else None
        return span.name if above is None else f"{path(above)}/{span.name}"

    return sorted(path(span).removeprefix("generate_content small") for span in spans.values())


def test_the_stages_of_a_pipeline(telemetry: Telemetry) -> None:
    """Stages lie under the request or the stage around them, with their attributes; module calls lie under theirs."""
    request = _start(telemetry)
    _denoise(request)
    request.finish(Outcome())
    assert _tree(telemetry) == [
        "", "/denoise", *["/denoise/denoise_step"] * 2, *["/denoise/denoise_step/unet"] * 2, "/text_encode", "/vae_decode",
    ]  # fmt: skip
    steps = [dict(span.attributes or {}) for span in telemetry.spans("denoise_step")]
    assert [step["inferspan.denoise.index"] for step in steps] == [0, 1]
    assert {step[semconv.STAGE_KIND] for step in steps} == {semconv.STAGE_KIND_MODEL}
    assert telemetry.only(telemetry.spans("denoise"))["rows"] == 2
    assert telemetry.only(telemetry.spans("vae_decode"))[semconv.ERROR_TYPE] == "LookupError"
    telemetry.check()


def test_a_stage_in_a_phase(telemetry: Telemetry) -> None:
    """A stage that lies in a phase is its child."""
    request = _start(telemetry)
    request.begin_phase(semconv.SPAN_PREFILL)
    now = request.steps.now()
    request.add_stage("vision_encode", now, now + 1, phase=request.steps.phase)
    request.begin_step(rows=1, tokens=4)
    request.end_step()
    request.finish(Outcome())
    assert _tree(telemetry) == ["", "/prefill", "/prefill/prefill_step", "/prefill/vision_encode"]
    telemetry.check()


@pytest.mark.parametrize("settings", [{}, {"keep": "errors"}], ids=["kept", "not kept"])
def test_the_metric(telemetry: Telemetry, settings: dict[str, Any]) -> None:
    """The metric has one value a stage, by name and model, also where the flight recorder keeps no spans."""
    request = _start(telemetry, **settings)
    _denoise(request)
    request.finish(Outcome())
    telemetry.spans()  # what is queued is measured
    rows = telemetry.metrics()[semconv.M_STAGE_DURATION]
    assert [count for _, count in rows] == [1, 1, 1]
    assert [name for name in ("denoise", "text_encode", "vae_decode") if f"'{name}'" not in str(rows)] == []
    assert "denoise_step" not in str(rows)
    assert all("'small'" in labels for labels, _ in rows)


def test_the_budget(telemetry: Telemetry) -> None:
    """Stages count against the budget as steps do; what is left out is counted on the request."""
    request = _start(telemetry, max_spans_per_trace=12)
    now = request.steps.now()
    kept = [request.add_stage("denoise_step", now, now + 1) for _ in range(50)]
    request.finish(Outcome())
    assert sum(kept) == len(telemetry.spans("denoise_step"))
    assert 0 < sum(kept) < 12
    assert telemetry.only(telemetry.spans("generate_content small"))[semconv.SPANS_DROPPED] == 50 - sum(kept)
