"""All options in one frozen object, from arguments, environment, a YAML file and presets.

Precedence: argument > environment > file > preset > default. A wrong argument, or a wrong file that an argument names, raises one
:class:`SettingsError` that names the setting, the value and what is allowed. A wrong environment variable, or what is wrong in a file
that one names, is a warning and the next source counts, as everywhere in OpenTelemetry; :meth:`Settings.source` tells where a value
came from. Variables of OpenTelemetry itself (``OTEL_*``) are read by the SDK and by ``otlp``, except those that steer content.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

from . import setting_checks as check
from .setting_checks import SettingsError
from .setting_sources.file import FILE_VARIABLE, read_file, read_named_file, unknown
from .setting_sources.observe import kinds, meant_by
from .setting_sources.paths import path, path_of_process
from .setting_sources.peaks import peaks as given_peaks
from .setting_sources.presets import PRESETS, with_mode

__all__ = ["PRESETS", "Settings", "SettingsError"]

CAPTURE_MODES = ("NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT")
CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
EVENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT"
EXCEPTION_VARIABLE = "OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN"
STABILITY_VARIABLE = "OTEL_SEMCONV_STABILITY_OPT_IN"
EXTENSION_VARIABLE = "INFERSPAN_EXTENSION"
PRESET_VARIABLE = "INFERSPAN_PRESET"
NO_SETTINGS = (PRESET_VARIABLE, FILE_VARIABLE, EXTENSION_VARIABLE, "INFERSPAN_BUILD_EXTENSION")
"""Variables that are ours and no setting of a model; the last one is read when the package is built."""

SLOW_SETTINGS = ("slow_after", "slow_first_token", "slow_quantile")
"""Settings that define a slow request."""


def _setting(default: Any, checked: Callable[[str, Any], Any], brief: str, *, env: str | None = None, live: bool = False) -> Any:
    return field(default=default, metadata={"check": checked, "brief": brief, "env": env, "live": live})


def _observed(name: str, value: object) -> tuple[str, ...]:
    return kinds(name, value, {item.name for item in fields(Settings)})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set; see ``docs/settings.md`` for the table with environment names.

    Raises:
        SettingsError: a value is of the wrong type, out of range, or contradicts another one.
    """

    # whether anything is recorded at all
    enabled: bool = _setting(True, check.boolean, "whether inferspan does anything: false makes every call of it leave the program as it is")
    # what is recorded
    modules: str | Sequence[Any] = _setting("layers", check.modules, 'modules that get spans on sampled steps: "layers" (layers, attention, MLP), "all", "none", or patterns: names and globs, `re:` and a regular expression from the start of the path, names of classes, classes, functions of path and module, and the groups group:vision, group:audio, group:fusion, group:language (by words in their paths)', live=True)
    stages: str | tuple[tuple[str, tuple[str, ...]], ...] = _setting("auto", check.stages, 'stages of multimodal models that get spans in every pass: "auto" (vision_encode, audio_encode and fusion, found by the structure of the model), "none", some of these names, or names with patterns of module paths, such as {"vision_encode": "model.vision_tower"} (in the environment vision_encode=model.vision_tower,fusion=model.connector)')
    methods: Sequence[str] | None = _setting(None, check.names, "methods whose calls are requests beside forward() and generate(); default: those known of transformers (get_image_features, ...) and encode and decode of autoencoders of diffusers")
    steps: str = _setting("all", check.choice("all", "sampled", "none"), "forward passes of generate() that get spans: all up to the budget, those with module spans, or none", live=True)
    every_step: bool = _setting(False, check.boolean, "module spans on every step, with the budget raised to its hard cap; for debugging", live=True)
    max_spans_per_trace: int = _setting(2000, check.integer(1, 100_000_000), "span budget of one request", live=True)
    span_hard_cap: int = _setting(5000, check.integer(1, 100_000_000), "what `max_spans_per_trace` may not exceed; raise both by name to lift the budget", live=True)
    module_span_name: str = _setting("layer", check.choice("layer", "path", "type"), 'name of a module span: "layer 12 mlp", the path, or the class', live=True)
    logits: bool = _setting(True, check.boolean, "statistics of the raw logits of every recorded step", live=True)
    roofline: str = _setting("phases", check.choice("none", "phases", "all"), 'operations, bytes and what limits them: of requests and their phases, of "all" steps and module calls that are recorded as well, or "none"', live=True)
    peaks: Mapping[str, float] | Sequence[tuple[str, float]] | None = _setting(None, given_peaks, "ceilings of the device for the roofline, instead of those of `inferspan peaks`: a mapping of flops (FLOP/s) and bandwidth (bytes a second), in the environment flops=989e12,bandwidth=4.8e12")
    top_k: int = _setting(5, check.integer(0, 100), "most likely tokens kept per step, only with content capture", live=True)
    top_k_positions: str = _setting("last", check.choice("last", "all"), 'with "all" and content capture: the `top_k` largest raw logits of every row and position of each pass, as log records and in `handle.top_logits()`; at most 1,024 of a pass and 4,096 of a request', live=True)
    token_arrays: bool = _setting(True, check.boolean, "log-probabilities, entropies and intervals per token on the request span")
    analysis: bool = _setting(True, check.boolean, "repetition, loops, entropy and confidence of what was generated, and findings: attributes of the request span, a `gen_ai.evaluation.result` event and a count each; requests that are sampled", live=True)
    thresholds: Mapping[str, float] | Sequence[tuple[str, float]] = _setting((), check.thresholds, "when a figure of the analysis is a finding, a mapping, or `confidence=0.5,repetition_recent=0.8,repetition_4gram=0.5,loop_tokens=32,logit_spread=0.1,entropy=0.01,collapse_tokens=64`, which are the defaults; those that are not named keep theirs", live=True)
    baseline: str | None = _setting(None, path, "file of `inferspan baseline`: the outputs of the latest 100 requests on each model in it are compared with it, `inferspan.health.drift` has the differences, and the finding `drift` stands on the request with which one begins")
    device_time: bool = _setting(True, check.boolean, "device time of requests, phases, steps and recorded module calls on CUDA, by events that nothing waits for", live=True)
    output_stats: bool = _setting(False, check.boolean, "mean, deviation, extremes, sparsity and NaN counts of every tensor in the output of each recorded module: see `modules` and `every_step`", live=True)
    input_stats: bool = _setting(False, check.boolean, "the same of what each recorded module is called with, masks apart", live=True)
    numerics: str | Sequence[Any] = _setting("none", check.modules, "modules whose outputs are looked at for NaN, Inf and values near the limit of their dtype, in every step of recorded requests: as for `modules`", live=True)
    numerics_inputs: bool = _setting(False, check.boolean, "with numerics: look at inputs of these modules too, masks apart", live=True)
    on_nonfinite: str = _setting("record", check.choice("record", "warn", "raise"), "with numerics: record NaN and Inf, log a warning for each request that has some, or, for debugging, raise `inferspan.NonfiniteError` from the call of the model: this waits for the device after each module", live=True)
    memory: str | Sequence[Any] = _setting("none", check.memory, 'modules before and after which memory is read (allocated, reserved and peak of the CUDA allocator), in every step of recorded requests: as for `modules`; or "steps". Anything but "none" also reads it before and after each step, on a CPU model the resident memory of the process', live=True)
    memory_snapshot: str | None = _setting(None, path_of_process, "when CUDA memory runs out and the program has called `torch.cuda.memory._record_memory_history()`: write torch's snapshot to this file, with the placeholders of `session_file`", live=True)
    gradients: str | Sequence[Any] = _setting("none", check.modules, "modules that get a span for each backward call, with statistics of the gradients of their inputs and outputs, in requests that run with gradients: as for `modules`", live=True)
    control_flow: str | Sequence[Any] = _setting("none", check.modules, "modules of which it is recorded in every pass whether they ran, and how often: early exits, skipped layers, loops, branches that data decide: as for `modules`", live=True)
    data_flow: str = _setting("none", check.choice("none", "modules", "operations"), "which module's output feeds which module's input, in passes that are recorded with their modules: none, modules (the same tensor or a view of it), or operations (also through the operations between modules, by a function mode of torch): see `handle.data_flow()`", live=True)
    observe: str | Sequence[str] = _setting((), _observed, "kinds of figures, some of `activation` (output_stats), `memory` (of layers), `attention` (of all layers), `debug` (numerics of all modules): their settings are turned on where they are at their defaults", live=True)
    attention: str | bool | Sequence[Any] = _setting("none", check.attention, 'layers of attention whose weights are looked at: "none", "all" (modules with attn or attention in their path), or patterns of them as for `modules`', live=True)
    attention_steps: str = _setting("sampled", check.choice("sampled", "all"), "steps in which they are: 0, 1, 2, 4, 8 ..., or all; with every_step all", live=True)
    attention_heads: Sequence[int] | None = _setting(None, check.heads, "numbers of the heads that are looked at, from 0; default: all", live=True)
    attention_memory: float = _setting(64.0, check.number(0.01, 1_000_000.0), "MiB that attention of one request may take: temporary weights on the device, figures, and weights that are kept; what needs more is left out and counted", live=True)
    attention_maps: bool = _setting(False, check.boolean, "keep the weights themselves, for `handle.attention()`, and compressed in log records, such as those of a session file", live=True)
    routing: bool = _setting(False, check.boolean, "routers of experts get spans on recorded steps, with the tokens of each expert, the imbalance, the entropy of the router and dropped tokens", live=True)
    entropy_metric: bool = _setting(False, check.boolean, "histograms of the entropy and of the largest probability of each recorded step")
    module_metric: bool = _setting(False, check.boolean, "histogram of the duration of each recorded module call: a series for each module and phase, of which the SDK keeps 2,000")
    activation_metric: bool = _setting(False, check.boolean, "with output_stats: histograms of deviation, largest magnitude and sparsity of outputs, a series for each layer and class of modules, at most 500")
    # which requests are worth their detail
    keep: str | Sequence[str] = _setting("always", check.keep, "requests whose detail becomes spans: always (all of them), or some of slow, errors, nonfinite, findings, unhealthy, marked; those marked with inferspan.keep are always among them")
    slow_after: float | None = _setting(None, check.number(0.0, 86_400.0), "with keep=slow: seconds after which a request is slow")
    slow_first_token: float | None = _setting(None, check.number(0.0, 86_400.0), "with keep=slow: seconds after which a first token is slow")
    slow_quantile: float | None = _setting(None, check.number(0.5, 0.999), "with keep=slow: slow is longer than this share of the latest requests; 0.99 if no slow_... is set")
    # which models are observed without a call of instrument()
    include: Sequence[str] | None = _setting(None, check.patterns, "under zero code: classes of modules that are observed beside those of transformers, diffusers and sentence-transformers, as name patterns (`MyNet`, `my_app.*.MyNet`); those that match, by class or by the model's name, are observed in training too")
    exclude: Sequence[str] | None = _setting(None, check.patterns, "under zero code: models that are not observed, by patterns of their class or name; stronger than `include`")
    training: bool = _setting(True, check.boolean, "calls in training mode with gradients are requests; under zero code only those of models that `include` names")
    # profiler windows
    profile_steps: int = _setting(0, check.integer(0, 1000), "forward passes that are profiled, from the second call of the model on; with `profile_signal`: at each signal, 3 if not set")
    profile_signal: str | None = _setting(None, check.signal_name, "profile at this signal, `SIGUSR2` for instance, and not before; instrument() must run on the main thread")
    profile_cpu_ops: bool | None = _setting(None, check.boolean, "operations of a profiled pass get spans; default: only on models without a CUDA device, which have no kernels")
    # how it is named
    operation: str | None = _setting(None, check.choice("chat", "text_completion", "generate_content", "embeddings"), "gen_ai.operation.name instead of the one inferred from the call")
    model_name: str | None = _setting(None, check.text, "gen_ai.request.model instead of the model's own name")
    provider_name: str | None = _setting(None, check.text, "gen_ai.provider.name instead of huggingface / pytorch")
    span_kind: str = _setting("internal", check.choice("internal", "client", "server"), "kind of the request span")
    semconv: str = _setting("dup", check.choice("dup", "latest", "legacy"), "gen_ai client metrics: old and new names, new only, old only")
    mark: bool = _setting(False, check.boolean, "mark every request span with inferspan.keep, by which a tail sampler keeps its trace; what keep=True was")
    session_tags: Mapping[str, str] | Sequence[tuple[str, str]] = _setting((), check.tags, "tags of every `inferspan.session()`, a mapping, or `mode=t2v,team=vision`; those of the call are stronger")
    compat_vllm_latency: bool = _setting(False, check.boolean, "gen_ai.latency.* attributes as vLLM and SGLang write them")
    # content
    capture_content: str = _setting("NO_CONTENT", check.choice(*CAPTURE_MODES, upper=True), "prompts, outputs and token ids: NO_CONTENT, SPAN_ONLY, EVENT_ONLY, SPAN_AND_EVENT", env=CAPTURE_VARIABLE)
    emit_event: bool | None = _setting(None, check.boolean, "send the content event; default: only in the two EVENT modes", env=EVENT_VARIABLE)
    content_format: str = _setting("json", check.choice("json", "structured"), "messages on spans as JSON texts, or as lists and maps; in the content event they are always lists and maps")
    max_content_chars: int = _setting(8192, check.integer(1, 30_000), "longest text of one captured message")
    exception_signal: str = _setting("logs/dup", check.choice("logs", "logs/dup"), "the exception of a failed generate(), where there is a logger provider: a log event (logs), or that and an event on the span (logs/dup); without one always an event on the span", env=EXCEPTION_VARIABLE)
    # samplers
    nvml: bool = _setting(True, check.boolean, "read NVIDIA GPUs")
    host: bool = _setting(True, check.boolean, "read the process and the host")
    allocator: bool = _setting(True, check.boolean, "read torch's CUDA allocator")
    all_gpus: bool = _setting(False, check.boolean, "report every GPU of the host, not only those that this process uses")
    sampler_interval: float = _setting(5.0, check.number(1.0, 3600.0), "seconds between two rounds of the samplers")
    gpu_interval: float | None = _setting(None, check.number(0.1, 3600.0), "seconds between two readings of the GPUs, default `sampler_interval`; below 1 s memory, utilisation, temperature and power are read each time, the rest every `sampler_interval`; a session file gets each reading with its own time")
    host_interval: float | None = _setting(None, check.number(0.1, 3600.0), "the same for the process and the host; below 1 s CPU and memory are read each time")
    gpu_metrics: Sequence[str] | None = _setting(None, check.some_of(*check.GPU_METRICS), f"readings of a GPU, some of {', '.join(check.GPU_METRICS)}; the others are not read; default: all. Energy of requests needs energy")
    host_metrics: Sequence[str] | None = _setting(None, check.some_of(*check.HOST_METRICS), f"readings of the process and the host, some of {', '.join(check.HOST_METRICS)}; the others are not read; default: all")
    max_data_points: int = _setting(10_000, check.integer(10, 1_000_000), "points of a metric series that a report keeps; beyond it neighbouring points are joined, with the lowest, the highest and the mean value")
    # what is shown while it runs
    live: bool = _setting(False, check.boolean, "print the session, requests, GPUs and CPU to standard error while something is instrumented")
    display_interval: float = _setting(3.0, check.number(0.1, 3600.0), "with live: seconds between two prints")
    # where it goes
    session_file: str | None = _setting(None, path_of_process, "write traces, metrics and logs as OTLP JSON lines to this file; `{rank}`, `{local_rank}`, `{world_size}`, `{pid}` and `{host}` are filled in, so that each process can have its own")
    session_file_limit: float | None = _setting(None, check.number(1.0, 1e7), "MiB after which a session file is renamed to its name with .1 (which is replaced) and a new one begun; default: no limit")
    report: str | None = _setting(None, check.choice("html", "json", "both"), "make a report at the end of the outermost `inferspan.session()`, and of the process: html, json or both")
    report_dir: str | None = _setting(None, path_of_process, "folder of these reports, made if it is not there; default: the current one; with the placeholders of `session_file`")
    ranks: str = _setting("auto", check.choice("auto", "joined", "separate"), "ranks of a distributed job whose requests are one trace: those over which the model is divided (`auto`: tensor and pipeline parallelism, not data parallelism), all (`joined`) or none (`separate`)")
    exit_timeout: float = _setting(5.0, check.number(0.0, 600.0), "longest time in seconds that our providers may hold up the exit")
    flush_on_sigterm: bool | None = _setting(None, check.boolean, "flush on SIGTERM: where the program has no handler for it (default), also before its handler runs (`true`), or never (`false`)")

    _sources: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None or item.default is not None:
                object.__setattr__(self, item.name, item.metadata["check"](item.name, value))
        for name, value in meant_by(self.observe).items():
            if getattr(self, name) == _default(name):
                object.__setattr__(self, name, value)
        if self.max_spans_per_trace > self.span_hard_cap:
            raise check.fail(
                "max_spans_per_trace",
                self.max_spans_per_trace,
                f"the hard cap is {self.span_hard_cap}; pass span_hard_cap={self.max_spans_per_trace} as well if you mean it",
            )
        if "slow" not in self.keep_words:
            for name in SLOW_SETTINGS:
                if getattr(self, name) is not None:
                    raise check.fail(name, getattr(self, name), f"it decides nothing with keep={self.keep!r}; add the word slow to keep")

    @property
    def keep_words(self) -> tuple[str, ...]:
        """Kinds of requests whose detail becomes spans; empty if it is that of all."""
        return () if self.keep == "always" else tuple(str(self.keep).split(","))

    @property
    def span_budget(self) -> int:
        """Spans that one request may have."""
        return self.span_hard_cap if self.every_step else self.max_spans_per_trace

    @property
    def content_on_spans(self) -> bool:
        """Whether prompts, outputs and token ids may stand on spans."""
        return self.capture_content in ("SPAN_ONLY", "SPAN_AND_EVENT")

    @property
    def content_in_events(self) -> bool:
        """Whether the content event is sent."""
        if self.emit_event is not None:
            return self.emit_event and self.capture_content in ("EVENT_ONLY", "SPAN_AND_EVENT")
        return self.capture_content in ("EVENT_ONLY", "SPAN_AND_EVENT")

    @classmethod
    def resolve(
        cls,
        overrides: Mapping[str, Any] | None = None,
        *,
        preset: str | None = None,
        config_file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Build settings from every source.

        Args:
            overrides: settings given as arguments; the strongest source.
            preset: name of a preset; default ``INFERSPAN_PRESET``, else that of the file, else ``default``.
            config_file: YAML file with a mapping of settings; default ``INFERSPAN_CONFIG``.
            environ: environment to read, default ``os.environ``.

        Raises:
            SettingsError: an argument is wrong, or what is in the file or preset that an argument names.
        """
        environ = os.environ if environ is None else environ
        overrides = dict(overrides or {})
        table = {item.name: item for item in fields(cls)}
        for name in overrides:
            if name not in table:
                raise unknown(name, table, "argument")
        named = environ.get(FILE_VARIABLE, "").strip() if config_file is None else None
        file_values = read_named_file(named, table) if named else read_file(config_file, table)
        chosen, said_by = _preset(preset, environ.get(PRESET_VARIABLE, "").strip(), file_values.pop("preset", None), named)
        in_environment = {name: value for name, value in _read_environment(environ, table).items() if name not in overrides}
        sources = {
            **(dict.fromkeys(PRESETS[chosen], said_by) if said_by else {}),
            **(dict.fromkeys(file_values, FILE_VARIABLE if named else "")),
            **dict.fromkeys(overrides, ""),
            **{name: environment_name(name) for name in in_environment},
        }
        values = with_mode(chosen, {**PRESETS[chosen], **file_values, **overrides, **in_environment})
        return cls._settled(values, sources)

    def override(self, overrides: Mapping[str, Any]) -> Settings:
        """These settings with some replaced by arguments.

        Raises:
            SettingsError: a setting is unknown, or wrong.
        """
        table = {item.name: item for item in fields(self)}
        for name in overrides:
            if name not in table:
                raise unknown(name, table, "argument")
        sources = {name: source for name, source in self._sources.items() if name not in overrides}
        present = {name: getattr(self, name) for name in table}
        if "observe" in overrides:
            present.update((name, _default(name)) for name, value in meant_by(self.observe).items() if present[name] == value)
        return self._settled({**present, **overrides}, sources)

    def switched(self, changes: Mapping[str, Any]) -> Settings:
        """The same at run time, when only some settings can change.

        Raises:
            SettingsError: a setting is unknown, wrong, or fixed while a model is instrumented.
        """
        changed, live = self.override(changes), live_settings()
        for name in changes:
            if name not in live:
                raise SettingsError(f"inferspan setting {name!r} is fixed while a model is instrumented; handle.set() takes {', '.join(live)}")
        return changed

    def source(self, name: str) -> str | None:
        """The environment variable that a setting comes from, also by a file or preset that it names; ``None`` for all else."""
        return self._sources.get(name)

    @classmethod
    def _settled(cls, values: dict[str, Any], sources: Mapping[str, str]) -> Settings:
        sources = {name: source for name, source in sources.items() if source}
        _settle_slow(values, sources)
        _settle_budget(values, sources)
        made = cls(**values)
        object.__setattr__(made, "_sources", sources)
        return made


def _default(name: str) -> Any:
    return next(item.default for item in fields(Settings) if item.name == name)


def environment_name(name: str) -> str:
    """The environment variable of a setting."""
    item = next(item for item in fields(Settings) if item.name == name)
    return str(item.metadata["env"] or f"INFERSPAN_{name.upper()}")


def describe() -> list[tuple[str, str, str, str]]:
    """Rows (setting, environment variable, default, meaning) for ``docs/settings.md`` and ``inferspan settings``."""
    return [
        (item.name, environment_name(item.name), "" if item.default in (None, MISSING, ()) else str(item.default), item.metadata["brief"])
        for item in fields(Settings)
    ]


def live_settings() -> tuple[str, ...]:
    """Names of the settings that ``handle.set()`` takes."""
    return tuple(item.name for item in fields(Settings) if item.metadata["live"])


def _read_environment(environ: Mapping[str, str], table: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, item in table.items():
        variable = environment_name(name)
        raw = environ.get(variable)
        if raw is None or not raw.strip():
            continue
        try:
            values[name] = item.metadata["check"](name, raw)
        except SettingsError as error:
            check.warn_once("%s=%s is ignored: %s", variable, check.shown(raw), error)
    _warn_of_unknown(environ, {environment_name(name) for name in table})
    words = {word.strip() for word in environ.get(STABILITY_VARIABLE, "").split(",")}
    if "semconv" not in values and "gen_ai_latest_experimental" in words:
        values["semconv"] = "latest"
    return values


def _warn_of_unknown(environ: Mapping[str, str], known: set[str]) -> None:
    """Warn of misspelt variables of ours, which would otherwise be ignored silently."""
    import difflib

    known = known.union(NO_SETTINGS)
    for variable in sorted(environ):
        ours = variable.startswith("INFERSPAN_") and not variable.startswith("INFERSPAN_STACK_")  # those are checked by `inferspan stack`
        if ours and variable not in known:
            close = difflib.get_close_matches(variable, known, n=1)
            hint = f": did you mean {close[0]}?" if close else ""
            check.warn_once("%s is no setting and is ignored%s", check.shown(variable), hint)


def _preset(argument: str | None, in_environment: str, in_file: object, file: str | None) -> tuple[str, str]:
    """The preset that counts, and the variable that it comes from, if any; ``file`` is the settings file that a variable names."""
    allowed = f"use one of {', '.join(PRESETS)}"
    for value in (argument, None if file else in_file):
        if value is not None and (not isinstance(value, str) or value not in PRESETS):
            raise check.fail("preset", value, allowed)
    if in_environment and in_environment not in PRESETS:
        check.warn_once("%s=%s is ignored: %s", PRESET_VARIABLE, check.shown(in_environment), allowed)
        in_environment = ""
    if in_file is not None and (not isinstance(in_file, str) or in_file not in PRESETS):
        check.warn_once("%s=%s: its preset %s is ignored: %s", FILE_VARIABLE, check.shown(file or ""), check.brief(in_file), allowed)
        in_file = None
    if argument is not None:
        return argument, ""
    if in_environment:
        return in_environment, PRESET_VARIABLE
    return (in_file, FILE_VARIABLE if file else "") if isinstance(in_file, str) else ("default", "")


def _ignore(sources: Mapping[str, str], name: str, value: object, reason: str) -> None:
    """Warn of a value of the environment that contradicts others."""
    variable = sources[name]
    label = f"{variable}={value}" if variable == environment_name(name) else f"{variable}: {name}={value}"
    check.warn_once("%s is ignored: %s", label, reason)


def _settle_budget(values: dict[str, Any], sources: Mapping[str, str]) -> None:
    """Keep the budget below its cap unless arguments name both: a low cap lowers the default, a variable that contradicts is a warning."""
    defaults: dict[str, Any] = {item.name: item.default for item in fields(Settings)}
    budget, cap = (values.get(name, defaults[name]) for name in ("max_spans_per_trace", "span_hard_cap"))
    # A cap that cannot be one at all is refused under its own name.
    if not isinstance(budget, int) or not isinstance(cap, int) or budget <= cap or cap < 1:
        return
    if "max_spans_per_trace" not in values or "max_spans_per_trace" in sources:
        if "max_spans_per_trace" in sources:
            reason = f"the hard cap is {cap}, set {environment_name('span_hard_cap')} as well"
            _ignore(sources, "max_spans_per_trace", budget, reason)
        values["max_spans_per_trace"] = min(cap, defaults["max_spans_per_trace"])
    elif "span_hard_cap" in sources:
        _ignore(sources, "span_hard_cap", cap, f"max_spans_per_trace is {budget}")
        del values["span_hard_cap"]


def _settle_slow(values: dict[str, Any], sources: Mapping[str, str]) -> None:
    """Drop what the environment says of slow requests, with a warning, where ``keep`` leaves nothing to decide.

    ``keep`` in the environment overrides the program's choice, so what arguments say of slow requests is dropped then, too.
    """
    with contextlib.suppress(SettingsError):  # it is raised, with the right words, when the settings are made
        if "slow" in check.keep("keep", values.get("keep", "always")).split(","):
            return
        for name in SLOW_SETTINGS:
            if values.get(name) is None:
                continue
            if name in sources and "keep" not in sources:
                _ignore(sources, name, values[name], f"it decides nothing unless {environment_name('keep')} has slow")
            if "keep" in sources or name in sources:
                del values[name]
