"""``python -m benchmarks.batching``: what recording costs continuous batching, and whether its memory stays flat.

*Pace*: a number of requests through a warm loop, from the first one to the last result; each instrumented run stands between two plain
ones, which are the A/A. *Memory*: many requests through one loop, of which some are open at a time; the resident memory
after each tenth of them, of a plain and of an instrumented run. Spans and metrics go to a receiver in another process. Progress goes to
standard error. Ends with 1 if spans of requests were missing at the receiver.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.arguments import leave_out_variables, positive
from benchmarks.models import MODELS, load
from benchmarks.ratios import Ratio, ratio_of
from benchmarks.receiver import count, receiver
from benchmarks.rounds import note
from benchmarks.table import markdown

__all__ = ["PACE", "main", "memory", "pace"]

PACE = (
    ("way", "way"),
    ("rate", "tokens/s"),
    ("ratio", "time, ratio"),
    ("sure", "95 % of the median"),
    ("thread", "CPU time of the process, ratio"),
    ("pairs", "pairs"),
)
MEMORY = (("requests", "requests"), ("plain", "plain, MiB"), ("recorded", "recorded, MiB"))
MIB = 2**20


def _loop(model: Any, tokens: int, *, blocks: int, most: int) -> Any:
    """A manager with a bounded cache; its default would take most of the machine's memory."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    options: Any = GenerationConfig
    bounded: Any = ContinuousBatchingConfig
    return model.init_continuous_batching(
        options(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0),
        bounded(num_blocks=blocks, page_size=32, max_batch_tokens=most, allow_block_sharing=False),
    )


def _prompt(number: int, length: int) -> list[int]:
    return [3 + (number * 7 + place * 13) % 500 for place in range(length)]


def _run(model: Any, requests: int, tokens: int, prompt: int) -> tuple[float, float]:
    """Seconds from the first of the requests to the last result, and CPU seconds of the process meanwhile.

    As many requests before them warm the loop up: on a GPU it captures a graph for each size of batch, which takes seconds.
    """
    blocks = requests * (2 + (prompt + tokens) // 32)
    loop = _loop(model, tokens, blocks=blocks, most=max(256, requests * prompt))
    loop.start()
    found = (0.0, 0.0)
    for _ in range(2):
        gc.collect()
        begun, cpu = time.perf_counter(), time.process_time()
        for number in range(requests):
            loop.add_request(_prompt(number, prompt))
        for _ in range(requests):
            assert loop.get_result(timeout=600) is not None
        found = time.perf_counter() - begun, time.process_time() - cpu
    loop.stop(block=True, timeout=60)
    return found


def _line(way: str, rate: float, found: Ratio, cpu: Ratio) -> dict[str, Any]:
    return {
        "way": way,
        "rate": f"{rate:,.0f}",
        "ratio": f"{found.median:.3f}",
        "sure": f"{found.sure_low:.3f} to {found.sure_high:.3f}",
        "thread": f"{cpu.median:.3f} ({cpu.sure_low:.3f} to {cpu.sure_high:.3f})",
        "pairs": f"{found.pairs}",
    }


def pace(model: Any, address: str, *, rounds: int, requests: int, tokens: int, prompt: int) -> list[dict[str, Any]]:
    """Plain, recorded, plain, in each round; one line for A/A and one for the recorded runs."""
    import inferspan

    first: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    second: list[tuple[float, float]] = []
    problem = ""
    for number in range(rounds + 1):
        before = _run(model, requests, tokens, prompt)
        with inferspan.instrument(model):
            recorded = _run(model, requests, tokens, prompt)
            inferspan.flush(120)
        arrived = sum(spans for name, spans in count(address).spans.items() if name.startswith("text_completion"))
        if arrived != 2 * requests:
            problem = f"FAILED: {arrived} spans of requests arrived, not {2 * requests}"
        after = _run(model, requests, tokens, prompt)
        note(f"round {number}: {before[0]:.3f} s plain, {recorded[0]:.3f} s recorded, {after[0]:.3f} s plain {problem}")
        if number:  # The first one warms up.
            first.append(before)
            ours.append(recorded)
            second.append(after)
    plain = [tuple((one + other) / 2 for one, other in zip(*pair, strict=True)) for pair in zip(first, second, strict=True)]
    lines = []
    for way, found, base in (("A/A", second, first), ("default", ours, plain)):
        wall, cpu = (ratio_of([one[part] for one in found], [one[part] for one in base]) for part in (0, 1))
        lines.append(_line(way, requests * tokens * len(found) / sum(one[0] for one in found), wall, cpu))
    if problem:
        lines.append({"way": problem, "failed": True})
    return lines


def _resident() -> int:
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _through(model: Any, requests: int, *, at_once: int, tokens: int) -> list[int]:
    """Resident memory after each tenth of the requests."""
    loop = _loop(model, tokens, blocks=2 * at_once, most=1024)
    loop.start()
    found = []
    for number in range(at_once):
        loop.add_request(_prompt(number, 8))
    for done in range(1, requests + 1):
        assert loop.get_result(timeout=600) is not None
        if done + at_once <= requests:
            loop.add_request(_prompt(done, 8))
        if not done % (requests // 10):
            found.append(_resident())
    loop.stop(block=True, timeout=60)
    return found


def memory(model: Any, address: str, *, requests: int, at_once: int = 64, tokens: int = 8) -> list[dict[str, Any]]:
    """A line for each tenth of the requests, and one with the growth over the last eight tenths."""
    import inferspan

    plain = _through(model, requests, at_once=at_once, tokens=tokens)
    with inferspan.instrument(model):
        recorded = _through(model, requests, at_once=at_once, tokens=tokens)
        inferspan.flush(120)
    arrived = sum(spans for name, spans in count(address).spans.items() if name.startswith("text_completion"))
    lines: list[dict[str, Any]] = [
        {"requests": f"{(number + 1) * requests // 10:,}", "plain": f"{one / MIB:.1f}", "recorded": f"{other / MIB:.1f}"}
        for number, (one, other) in enumerate(zip(plain, recorded, strict=True))
    ]
    grown = {"plain": f"{(plain[-1] - plain[1]) / MIB:+.1f}", "recorded": f"{(recorded[-1] - recorded[1]) / MIB:+.1f}"}
    lines.append({"requests": "growth over the last 80 %", **grown})
    if arrived != requests:
        lines.append({"requests": f"FAILED: {arrived:,} spans of requests arrived, not {requests:,}", "failed": True})
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batching", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--parts", default="pace,memory", metavar="LIST", help="default: %(default)s")
    parser.add_argument("--model", choices=MODELS, default="smollm2", help="of the pace (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=10, help="of the pace (default: %(default)s)")
    parser.add_argument("--concurrent", type=positive, default=64, help="requests of the pace (default: %(default)s)")
    parser.add_argument("--tokens", type=positive, default=16, help="of a request of the pace (default: %(default)s)")
    parser.add_argument("--prompt", type=positive, default=16, help="tokens of its prompt (default: %(default)s)")
    parser.add_argument("--requests", type=positive, default=10_000, help="of the memory (default: %(default)s)")
    parser.add_argument("--threads", type=positive, help="threads of torch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    found: dict[str, Any] = {}
    with receiver() as address:
        leave_out_variables(note)
        os.environ.update(
            OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf", OTEL_METRIC_EXPORT_INTERVAL="3600000"
        )
        import torch
        from transformers.utils import logging

        import inferspan
        from inferspan.export import otlp

        logging.set_verbosity_error()
        if options.threads:
            torch.set_num_threads(options.threads)
        found["machine"] = machine.describe()
        inferspan.configure()
        if "pace" in options.parts:
            model, _ = load(options.model)
            found["pace"] = pace(
                model, address, rounds=options.rounds, requests=options.concurrent, tokens=options.tokens, prompt=options.prompt
            )
        if "memory" in options.parts:
            model, _ = load("tiny")
            with machine.one_thread():
                found["memory"] = memory(model, address, requests=options.requests)
        otlp.shutdown(30)
    print("\n".join(f"- {name}: {value}" for name, value in found["machine"].items()))
    for part, columns in (("pace", PACE), ("memory", MEMORY)):
        if part in found:
            print(f"\n{markdown(columns, found[part])}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(line.get("failed") for part in ("pace", "memory") for line in found.get(part, [])))


if __name__ == "__main__":
    sys.exit(main())
