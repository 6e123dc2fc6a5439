"""What a program in this environment emits."""

from __future__ import annotations

from collections.abc import Iterator

from inferspan.doctor.endpoints import service_name
from inferspan.doctor.findings import Finding, Look, note
from inferspan.doctor.settings import in_force
from inferspan.ranks import ranks

__all__ = ["emission"]


def emission(look: Look) -> Iterator[Finding]:
    """Spans, metrics, content and readings, as the settings have them."""
    if look.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield note("spans and metrics", "none", "OTEL_SDK_DISABLED")
        return
    settings = in_force(look)
    yield note("service", service_name(look), "OTEL_SERVICE_NAME" if look.environ.get("OTEL_SERVICE_NAME", "").strip() else "")
    yield note("requests", "a span for each generate() and forward pass, with tokens and latencies")
    steps = {"all": "a span for each, up to the budget", "sampled": "spans of those with modules", "none": "no spans"}
    yield note("steps", steps[settings.steps])
    modules = settings.modules if isinstance(settings.modules, str) else ", ".join(settings.modules)
    words = {"layers": "layers, attention and MLP", "all": "all", "none": "none"}.get(modules, modules)
    yield note("modules", f"{words}, {'on every step' if settings.every_step else 'on sampled steps'}" if words != "none" else "no spans")
    yield note("spans a request", f"at most {settings.span_budget:,}")
    if settings.keep_words:
        yield note("detail", f"only of requests that are {', '.join(settings.keep_words)}")
    yield note("logits", "statistics of each step" if settings.logits else "not looked at")
    yield note("metrics", f"names of the GenAI conventions: {settings.semconv}")
    where = {"NO_CONTENT": "not recorded", "SPAN_ONLY": "on spans", "EVENT_ONLY": "in events", "SPAN_AND_EVENT": "on spans and in events"}
    yield note("prompts and outputs", where[settings.capture_content])
    read = [name for name, on in (("GPUs", settings.nvml), ("process and host", settings.host), ("allocator", settings.allocator)) if on]
    yield note("machine", f"{', '.join(read)} every {settings.sampler_interval:g} s" if read else "not read")
    sampler = look.environ.get("OTEL_TRACES_SAMPLER", "").strip()
    if sampler:
        argument = look.environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
        yield note("traces sampled", f"{sampler}{f' {argument}' if argument else ''}", "OTEL_TRACES_SAMPLER")
    rank = [f"{name.rpartition('.')[2]} {value}" for name, value in ranks(look.environ).items() if value is not None]
    if rank:
        yield note("rank", ", ".join(rank), "environment of the launcher")
