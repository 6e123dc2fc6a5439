"""A program that gives every panel something to show: one of several that serve a model each, on cards that are played back.

Each round asks for what a service is asked for, a failure and a NaN among it. ``MODEL`` is ``smollm2`` or ``tiny``, ``ROUNDS`` how often,
``SLEEP`` what each forward pass takes longer (a straggler), ``GPUS`` how many cards the host has, ``OTHERS`` in how many rounds other
models are served as well. Telemetry goes where the environment says.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from transformers import DynamicCache, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

import inferspan
from inferspan.analysis.baseline import LEAST, Baseline, Outputs
from inferspan.demo import load_smollm2
from inferspan.records import Sample
from inferspan.samplers import allocator, host
from tests.cases.models import llama, prompt
from tests.integration.dashboards.other_models import OtherModels
from tests.samplers.fake_gpm import CountingRecordedNvml
from tests.samplers.fake_nvml import NOT_SUPPORTED, NVMLError
from tests.samplers.recorded_nvml import recorded_torch

CARDS = tuple(f"GPU-{digit * 8}-52c5-4b8e-9d39-6f1e0a4c7d11" for digit in "abc")
"""The third does not tell how busy it is, like a card that is split."""
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
"""Name of the argument that takes a cache, by version of transformers."""
GENERATIONS = 7
"""In each round, of which one fails."""
PAUSE = 1.2
"""Longer than the export interval, so that every round moves every counter in an export of its own."""


class Discards(BaseStreamer):
    """A streamer that lets go of what it is given."""

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt first, then with each token."""

    def end(self) -> None:
        """Called once, at the end."""


class Fails(LogitsProcessor):
    """Raises in the second step."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Count the step, pass the scores through, or fail."""
        self.calls += 1
        if self.calls == 2:
            raise ValueError("the second step is one too many")
        return scores


class _FailsNowAndThen(allocator.AllocatorSampler):
    """A sampler with a fault of its own, which is contained and counted."""

    rounds = itertools.count(1)

    def collect(self) -> Sequence[Sample]:
        if next(self.rounds) % 7 == 0:
            raise RuntimeError("the sampler fails this time")
        return super().collect()


def play_cards(count: int) -> None:
    """Put recorded cards where the samplers look; what the recorded card lacks (fans, NVLink, ECC errors) is planted."""
    begun = time.monotonic()
    rising = lambda rate: lambda: int((time.monotonic() - begun) * rate)  # noqa: E731
    planted = {
        ("FanSpeed_v2", 0): 41,
        "FanSpeedRPM": 2400,
        138: rising(2_000_000),
        139: rising(1_000_000),
        75: rising(50_000_000),
        ("TotalEccErrors", 0, 0): rising(1),
        ("MemoryErrorCounter", 0, 0, 2): rising(1),
        "PcieReplayCounter": rising(1),
        "RemappedRows": (1, 0, 0, 0),
    }
    uuids = CARDS[:count]
    silent = {**planted, "UtilizationRates": NVMLError(NOT_SUPPORTED)}
    sys.modules["pynvml"] = CountingRecordedNvml(*uuids, planted={uuid: silent if uuid == CARDS[2] else planted for uuid in uuids})
    torch_played = recorded_torch(*uuids)
    devices: Any = allocator.CudaDevices(library=torch_played)
    changed: Any = allocator
    changed.AllocatorSampler = partial(_FailsNowAndThen, devices=devices, library=torch_played)
    changed.cuda_devices = devices


def limit_memory(root: Path) -> None:
    """Have the host sampler look under ``root``, where the files say that the process runs in a container with a memory limit."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    folder = root / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(str(64 << 30))
    (folder / "memory.current").write_text(str(5 << 30))
    (folder / "memory.stat").write_text(f"inactive_file {1 << 30}\n")
    changed: Any = host
    changed.HostSampler = partial(host.HostSampler, root=root)


def load(name: str) -> tuple[Any, Any, str]:
    """The model, a prompt of one row and one of two rows, and the module whose output is spoilt."""
    if name == "smollm2":
        model, tokenizer = load_smollm2()
        tokenizer.padding_side = "left"
        one, two = (
            tokenizer("Once upon a time", return_tensors="pt"),
            tokenizer(["Hello", "Name three rivers"], return_tensors="pt", padding=True),
        )
        return model, (one, two), "model.layers.29.mlp"
    model = llama()
    model.generation_config.eos_token_id = None
    ids = torch.randint(3, 60, (2, 12))
    rows = [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in (ids[:1], ids)]
    return model, tuple(rows), "model.layers.1.mlp"


def spoil(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
    """A forward hook that plants one NaN."""
    output = output.clone()
    output.view(-1)[0] = float("nan")
    return output


def recompile(number: int) -> None:
    """Compile a function with a graph break, for a size that no round before has had: a graph, a break and a recompilation."""

    def broken(value: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return value + 1

    function = torch.compile(broken, backend="eager", dynamic=False)
    for size in (2, 3):
        function(torch.ones(number + size))


def round_of_requests(model: Any, prompts: Any, spoilt: str, encoder: Any, number: int) -> None:
    """One request of each kind."""
    with inferspan.stage("unpack"):
        one, two = prompts
    ask = partial(model.generate, max_new_tokens=6, do_sample=False)
    cache: Any = {CACHE: DynamicCache(config=model.config)}
    ask(**one, **cache)
    # All of the prompt but its last position stays, for a request that goes on from it.
    cache[CACHE].crop(one["input_ids"].shape[1] - 1 - cache[CACHE].get_seq_length())
    ask(**two)
    ask(**one, **cache, streamer=Discards())
    kept: Any = {"inferspan.keep": True}
    with inferspan.context(conversation_id=f"kept-{number}", **kept):
        ask(**one)
    try:
        ask(**one, logits_processor=LogitsProcessorList([Fails()]))
    except ValueError:
        pass
    # The end of the prompt stands in it before, so there is something to look up.
    ask(input_ids=one["input_ids"].repeat(1, 2), attention_mask=one["attention_mask"].repeat(1, 2), prompt_lookup_num_tokens=2)
    recompile(number)
    hook = model.get_submodule(spoilt).register_forward_hook(spoil)
    ask(**one)
    hook.remove()
    with torch.no_grad():
        model(**one)
        encoder(input_ids=one["input_ids"] % 64, attention_mask=one["attention_mask"])


def against_a_baseline(folder: Path) -> int:
    """Requests whose outputs are compared with those of an earlier version, just enough of them. Returns their number."""
    model, number = llama(seed=2), LEAST + 2
    baseline = Baseline([Outputs("tiny-watched", "", 100, {"output_tokens": (100, 3.0, 50.0), "entropy": (100, 4.0, 2.0)})])
    baseline.save(folder / "baseline.json")
    handle = inferspan.instrument(
        model, model_name="tiny-watched", baseline=str(folder / "baseline.json"), steps="none", modules="none"
    )  # fmt: skip
    for _ in range(number):
        model.generate(prompt(1, 5), max_new_tokens=2, do_sample=False)
    inferspan.flush()
    handle.uninstrument()
    return number


def main(path: str) -> None:
    """Instrument the models, serve the rounds, and write down when they began and ended, and how many requests there were."""
    environment = os.environ
    play_cards(int(environment["GPUS"]))
    limit_memory(Path(path).with_suffix(".cgroup"))
    model, prompts, spoilt = load(environment["MODEL"])
    tiny = environment["MODEL"] == "tiny"
    pause = float(environment.get("SLEEP", "0"))
    if pause:
        model.model.layers[0].register_forward_pre_hook(lambda module, arguments: time.sleep(pause))
    # Durations of modules make a series for each module, so only the small model has them.
    handle = inferspan.instrument(
        model,
        model_name="tiny-llama" if tiny else None,
        output_stats=True,
        entropy_metric=True,
        module_metric=tiny,
        activation_metric=tiny,
        peaks={"flops": 1e8, "bandwidth": 1e7},  # so low that even the small model is limited by them
        max_spans_per_trace=30 if tiny else 200,
    )
    encoder = llama(seed=1).model
    embedding = inferspan.instrument(encoder, model_name="tiny-embedding", operation="embeddings")
    rounds_of_others = int(environment.get("OTHERS", "0"))
    others = OtherModels(Path(path).parent) if rounds_of_others else None
    begun, rounds = time.time(), int(environment["ROUNDS"])
    requests = rounds * GENERATIONS + (against_a_baseline(Path(path).parent) if others is not None else 0)
    for number in range(rounds):
        round_of_requests(model, prompts, spoilt, encoder, number)
        if others is not None and number < rounds_of_others:
            requests += others.serve()
        time.sleep(PAUSE)
    inferspan.flush()
    if others is not None:
        others.close()
    embedding.uninstrument()
    handle.uninstrument()
    Path(path).write_text(json.dumps({"begun": begun, "ended": time.time(), "requests": requests, "failed": rounds}))


if __name__ == "__main__":
    main(sys.argv[1])
