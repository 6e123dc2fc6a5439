"""Many decoding steps in one process: does anything grow? Resident memory, open files, threads and Python objects, with a verdict.

In: a number of steps. Out: samples in equal distances, the growth over the second half of them, and what is too much. Spans go to a
receiver in a process of its own, which forgets them. A request has 200 steps.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil

__all__ = ["Sample", "main", "soak", "verdict"]

STEPS = 200
"""Of a request."""
SAMPLES = 20
MOST_PER_STEP = 8.0
"""Bytes of resident memory for each step: 8 MB for a million, which is what an allocator's rounding may do."""
MOST_OBJECTS = 500
"""Python objects by which the end may differ from the middle."""


class Sample(NamedTuple):
    """One look at the process, after a request has ended and everything was flushed."""

    steps: int
    rss: int
    files: int
    threads: int
    objects: int


def slope(samples: Sequence[Sample]) -> float:
    """Bytes of resident memory for each step, by least squares."""
    steps, sizes = [float(one.steps) for one in samples], [float(one.rss) for one in samples]
    middle, level = sum(steps) / len(steps), sum(sizes) / len(sizes)
    spread = sum((step - middle) ** 2 for step in steps)
    return sum((step - middle) * (size - level) for step, size in zip(steps, sizes, strict=True)) / spread if spread else 0.0


def verdict(samples: Sequence[Sample]) -> list[str]:
    """What grows too much over the second half; empty if nothing does."""
    half = samples[len(samples) // 2 :]
    first, last, wrong = half[0], half[-1], []
    per_step = slope(half)
    if per_step > MOST_PER_STEP:
        wrong.append(f"resident memory grows by {per_step:.1f} bytes a step, allowed are {MOST_PER_STEP}")
    if last.files > first.files:
        wrong.append(f"open files: {first.files}, then {last.files}")
    if last.threads > first.threads:
        wrong.append(f"threads: {first.threads}, then {last.threads}")
    if last.objects > first.objects + MOST_OBJECTS:
        wrong.append(f"Python objects: {first.objects:,}, then {last.objects:,}")
    return wrong


def soak(steps: int, *, every: int = 0) -> list[Sample]:
    """Generate on a tiny model until there were so many steps.

    Args:
        steps: at least 100 requests of 200 each: figures of the latest 32 are kept, which are no growth.
        every: steps between two samples, default a twentieth of all.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import inferspan
    from benchmarks.receiver import count, receiver

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, max_position_embeddings=2 * STEPS, **sizes)).eval()
    prompt, every = torch.ones(1, 4, dtype=torch.long), every or max(STEPS, steps // SAMPLES)
    process, samples, done = psutil.Process(), [], 0
    with receiver() as address:
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with inferspan.instrument(model):
            while done < steps:
                model.generate(prompt, max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False)
                done += STEPS
                if done % every < STEPS:
                    inferspan.flush()
                    count(address)  # the receiver forgets
                    gc.collect()
                    samples.append(Sample(done, process.memory_info().rss, process.num_fds(), process.num_threads(), len(gc.get_objects())))
                    one = samples[-1]
                    print(f"{one.steps:>10,} {one.rss / 2**20:>9.1f} {one.files:>6} {one.threads:>8} {one.objects:>9,}", flush=True)
    return samples


def main(steps: int) -> int:
    """Run it and print samples and verdict; 1 if something grows."""
    print(f"{'steps':>10} {'RSS, MiB':>9} {'files':>6} {'threads':>8} {'objects':>9}", flush=True)
    begin = time.monotonic()
    samples = soak(steps)
    wrong = verdict(samples)
    half = samples[len(samples) // 2 :]
    print(f"{samples[-1].steps:,} steps in {time.monotonic() - begin:.0f} s; second half: {slope(half):+.2f} bytes of memory a step")
    print("\n".join(f"GROWS: {one}" for one in wrong) or "nothing grows")
    return int(bool(wrong))
