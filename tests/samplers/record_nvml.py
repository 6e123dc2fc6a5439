"""Record what NVML answers on a real card, round by round: ``python -m tests.samplers.record_nvml OUTPUT [ROUNDS]``.

In: a machine with an NVIDIA GPU, torch and nvidia-ml-py. Out: JSON lines with every answer and every error code of the functions that
the sampler asks, while the card idles, computes, moves data and idles again, and torch's allocator statistics of the same moments.
``recorded_nvml`` plays the file back on machines without a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from inferspan.samplers.nvml import NvmlSampler

__all__ = ["main"]

ROUND_SECONDS = 1.0


def plain(value: Any) -> Any:
    """An answer as JSON: structures become objects, process ids become 0 for ours and 1 for others."""
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_ if isinstance(getattr(value, name), int | float)}
    if hasattr(value, "pid"):
        return {"pid": int(value.pid != os.getpid()), "usedGpuMemory": value.usedGpuMemory}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


class Recorder(ModuleType):
    """The binding, with every call about a device written down."""

    def __init__(self, library: ModuleType) -> None:
        super().__init__("pynvml")
        self._library = library
        self.round: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._library, name)
        if not name.startswith(("nvmlDeviceGet", "nvmlSystemGet")) or "Handle" in name:
            return value

        def call(*args: Any, **options: Any) -> Any:
            of_device = name.startswith("nvmlDevice")
            key = json.dumps([name, *(plain(item) for item in args[of_device:])])
            try:
                answer = value(*args, **options)
            except self._library.NVMLError as error:
                self.round[key] = {"error": error.value}
                raise
            if name == "nvmlDeviceGetFieldValues":
                fields = self.round.setdefault("fields", {})
                fields.update({str(f.fieldId): f.value.ullVal if f.nvmlReturn == 0 else {"error": f.nvmlReturn} for f in answer})
            else:
                self.round[key] = {"answer": plain(answer)}
            return answer

        return call


def _load(stop: threading.Event, busy: threading.Event) -> None:
    import torch

    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    while not stop.is_set():
        if not busy.wait(0.1):
            continue
        kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(4)]
        for _ in range(20):
            matrix = (matrix @ matrix).clamp_(-1, 1)
        kept[0][: host.numel()].copy_(host, non_blocking=True)
        host.copy_(kept[0][: host.numel()], non_blocking=True)
        torch.cuda.synchronize()


def written(about: dict[str, Any], taken: list[dict[str, Any]]) -> str:
    """The file: a line about the card, then a line for each round that holds what has changed since the one before."""
    lines: list[dict[str, Any]] = [{"about": about, "round_seconds": ROUND_SECONDS}]
    known: dict[str, dict[str, Any]] = {"nvml": {}, "fields": {}, "torch": {}}
    for round_ in taken:
        nvml = dict(round_["nvml"])
        parts = {"fields": nvml.pop("fields", {}), "nvml": nvml, "torch": round_["torch"]}
        lines.append({part: {key: value for key, value in now.items() if known[part].get(key) != value} for part, now in parts.items()})
        known = parts
    return "".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines)


def main(output: str, rounds: int = 24) -> None:
    """Record ``rounds`` rounds: idle for a sixth, loaded for two thirds, idle for the rest."""
    import pynvml
    import torch

    torch.zeros(1, device="cuda")
    recorder = Recorder(pynvml)
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    pynvml.nvmlInit()
    sampler = NvmlSampler(library=recorder, cuda_devices=lambda: {uuid: "cuda:0"})
    stop, busy = threading.Event(), threading.Event()
    worker = threading.Thread(target=_load, args=(stop, busy))
    worker.start()
    taken: list[dict[str, Any]] = []
    for number in range(rounds):
        (busy.set if rounds // 6 <= number < rounds - rounds // 6 else busy.clear)()
        recorder.round = {}
        begun = time.monotonic()
        samples = sampler.collect()
        stats = {key: value for key, value in torch.cuda.memory_stats().items() if ".all." in key or "." not in key}
        taken.append({"nvml": recorder.round, "seconds": time.monotonic() - begun, "samples": len(samples), "torch": stats})
        time.sleep(ROUND_SECONDS)
    stop.set()
    worker.join()
    about = {"uuid": uuid, "card": torch.cuda.get_device_name(0), "torch": torch.__version__, "driver": pynvml.nvmlSystemGetDriverVersion()}
    Path(output).write_text(written(about, taken), encoding="utf-8")
    print(about, [round_["samples"] for round_ in taken])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
