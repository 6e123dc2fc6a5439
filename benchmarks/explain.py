"""``python -m benchmarks.explain``: how near the gain that ``inferspan explain`` expects comes to the one that the change brings.

Each case is recorded as it is and changed as the advice says, one after the other in each round. The gain that explain expects of the first
recording stands beside the difference of the time of all requests in both. Figures are those of the fastest recording of each, because other
work on the machine only adds time. Slow parts of padding and prefix cache compute; the others sleep, so that they are known.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.arguments import positive

__all__ = ["CASES", "Case", "Row", "main", "measured"]

Run = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """A program with a cause: the rule that has to name it, what records it, and what records it after the change."""

    rule: str
    change: str
    slow: Run
    changed: Run


@dataclass(frozen=True)
class Row:
    """Seconds of a case in its fastest recordings; ``named`` is the number of rounds in which its rule came first."""

    name: str
    total: float
    expected: float
    gained: float
    named: int
    rounds: int

    @property
    def ratio(self) -> float:
        """Expected gain over the measured one."""
        return self.expected / self.gained if self.gained else float("inf")


def llama(**changes: Any) -> Any:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    options = {
        "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 4096,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**options, **changes})).eval()


def _record(path: Path, model: Any, work: Callable[[], object], tokenizer: Any = None, **settings: Any) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    import inferspan
    from inferspan.export.files.session_file import MetricFileExporter, SpanFileExporter

    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(SpanFileExporter(path)))
    meters = MeterProvider([PeriodicExportingMetricReader(MetricFileExporter(path), 1e9)], shutdown_on_exit=False)
    settings = {"nvml": False, "host": False, "allocator": False, **settings}
    handle = inferspan.instrument(model, tokenizer, tracer_provider=tracers, meter_provider=meters, **settings)
    try:
        with torch.inference_mode():
            work()
        handle.flush()
    finally:
        handle.uninstrument()
        tracers.shutdown()
        meters.shutdown()


def _generate(model: Any, ids: Tensor, tokens: int = 8, **options: Any) -> None:
    model.generate(ids, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0, **options)


def _repeat(times: int, call: Callable[[], None]) -> None:
    for _ in range(times):
        call()


class _Sleeping(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        time.sleep(0.02)
        return self.inner(x)


def _module(path: Path, slow: bool) -> None:
    model = llama()
    if slow:
        model.model.layers[2].mlp = _Sleeping(model.model.layers[2].mlp)
    _record(path, model, lambda: _repeat(4, lambda: _generate(model, torch.full((1, 8), 5))))


_LENGTHS = (512, 30, 40, 20, 480, 25, 60, 35, 500, 45, 28, 33)


def _padding(path: Path, slow: bool) -> None:
    """Prompts in batches of three, in the order in which they come or by length."""
    model = llama(hidden_size=192, intermediate_size=768)
    lengths = _LENGTHS if slow else sorted(_LENGTHS, reverse=True)
    groups = [lengths[start : start + 3] for start in range(0, len(lengths), 3)]

    def work() -> None:
        for group in groups:
            mask = torch.zeros(len(group), max(group), dtype=torch.long)
            for row, length in enumerate(group):
                mask[row, max(group) - length :] = 1
            _generate(model, torch.full(mask.shape, 5), 2, attention_mask=mask)

    _record(path, model, work)


def _tokenizer() -> Any:
    """Word 17 is the text w17."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({f"w{number:03}": number for number in range(256)}, unk_token="w003"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w000")


def _prefix(path: Path, slow: bool) -> None:
    """Prompts of 1,000 tokens of which 800 are the same, computed in each request or kept."""
    from transformers import DynamicCache

    model = llama(hidden_size=192, intermediate_size=768)
    generator = torch.Generator().manual_seed(0)
    common = torch.randint(4, 250, (1, 800), generator=generator)
    prompts = [torch.cat([common, torch.randint(4, 250, (1, 200), generator=generator)], 1) for _ in range(6)]

    def work() -> None:
        kept = None
        for prompt in prompts:
            if slow:
                _generate(model, prompt, 2)
                continue
            # The first request computes what all have in common; the others go on from there.
            cache = DynamicCache(config=model.config) if kept is None else kept
            _generate(model, prompt, 2, past_key_values=cache)
            cache.crop(800 - cache.get_seq_length())
            kept = cache

    _record(path, model, work, _tokenizer(), capture_content="SPAN_ONLY", max_content_chars=30_000)


def _compiling(graph: Any, inputs: Any) -> Any:
    time.sleep(0.5)
    return graph.forward


def _compile(path: Path, slow: bool) -> None:
    """Inputs of ten lengths, each compiled, or one graph for all."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    compiled = torch.compile(model, backend=_compiling, dynamic=not slow)
    _record(path, model, lambda: [compiled(torch.ones(3 + number % 6, 8)) for number in range(18)], modules="none")
    torch._dynamo.reset()


def _outside(path: Path, slow: bool) -> None:
    """A logits processor that takes 30 ms a token, or none."""
    from transformers import LogitsProcessor, LogitsProcessorList

    class Slow(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            time.sleep(0.03)
            return scores

    model = llama()
    processors = LogitsProcessorList([Slow()] if slow else [])
    _record(path, model, lambda: _repeat(4, lambda: _generate(model, torch.full((1, 8), 5), logits_processor=processors)))


class _Far(Mapping[str, Any]):
    """Weights that take 4 ms to come."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = {name: value.clone() for name, value in weights.items()}

    def __getitem__(self, name: str) -> Any:
        time.sleep(0.004)
        return self._weights[name]

    def __iter__(self) -> Any:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _offload(path: Path, slow: bool) -> None:
    """Weights are moved in for each pass, or stay."""
    hooks: Any = importlib.import_module("accelerate.hooks")
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).eval()
    if slow:
        hooks.attach_align_device_hook(model, execution_device=torch.device("cpu"), offload=True, weights_map=_Far(model.state_dict()))
    _record(path, model, lambda: [model(torch.ones(2, 256)) for _ in range(10)], modules="none")


def _case(rule: str, change: str, run: Callable[[Path, bool], None]) -> Case:
    return Case(rule, change, lambda path: run(path, True), lambda path: run(path, False))


CASES: Mapping[str, Case] = {
    "slow module": _case("slow_module", "removed", _module),
    "padding": _case("padding", "prompts sorted by length", _padding),
    "prefix cache": _case("long_prefill", "past_key_values of the common part", _prefix),
    "recompilation": _case("recompilation", "dynamic=True", _compile),
    "time between steps": _case("outside_steps", "processor removed", _outside),
    "offloaded weights": _case("offload_stall", "not offloaded", _offload),
}


def measured(name: str, rounds: int, tell: Callable[[str], None] = lambda text: None) -> Row:
    """Record a case and its change in turns.

    Args:
        name: key of ``CASES``.
        rounds: pairs of recordings, after one that is not counted.
        tell: gets a line for each round.
    """
    from inferspan.report.figures.explained import explanation_of
    from inferspan.report.session import read_session

    case, before_and_expected, changed, named = CASES[name], [], [], 0
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            before, after = Path(folder) / "before.jsonl", Path(folder) / "after.jsonl"
            case.slow(before)
            case.changed(after)
            found, then = explanation_of(read_session(before)), explanation_of(read_session(after))
        if not number:
            continue
        cause = next((cause for cause in found.causes if cause.rule == case.rule), None)
        named += bool(found.causes) and found.causes[0].rule == case.rule
        gain = (cause.gain or 0.0) if cause is not None else 0.0
        before_and_expected.append((found.total, gain))
        changed.append(then.total)
        tell(f"{name}, round {number}: {found.total:.3f} s, expected {gain:.3f} s less, changed {then.total:.3f} s")
    total, expected = min(before_and_expected)
    return Row(name, total, expected, total - min(changed), named, rounds)


def main(argv: list[str] | None = None) -> int:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explain", description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=positive, default=5, help="pairs of recordings of each case (default: %(default)s)")
    parser.add_argument("--threads", type=positive, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    rows = [measured(name, arguments.rounds, print) for name in arguments.cases or CASES]
    print(f"\n{'cause':20} {'change':36} {'time':>9} {'expected':>9} {'measured':>9} {'ratio':>6}  first in")
    for row in rows:
        print(
            f"{row.name:20} {CASES[row.name].change:36} {row.total:8.3f}s {row.expected:8.3f}s {row.gained:8.3f}s {row.ratio:6.2f}"
            f"  {row.named} of {row.rounds}"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([{**vars(row), "ratio": row.ratio} for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
