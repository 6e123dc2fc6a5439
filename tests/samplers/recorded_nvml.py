"""The recording of ``record_nvml`` played back: cards that answer as an H200 did, in time with a clock, and torch's allocator with them.

In: the clock, the UUIDs that the cards shall have. Out: a module like ``pynvml`` and one like ``torch`` for the samplers' ``library``
arguments, or for ``sys.modules`` of a program. At the end the recording starts again; counters go on rising.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.samplers.fake_nvml import Card, FakeNvml, NVMLError

__all__ = ["ABOUT", "FIRST_UUID", "RecordedNvml", "recorded_torch", "rounds"]

RECORDING = Path(__file__).with_name("nvml_h200.jsonl")
SHIFT = 7
"""Each further card plays the recording this many rounds later."""
WRAPPED = ("197", "198")
"""PCIe bytes. That driver gives 32 bits, which had wrapped at least where a value falls: played back is a driver that gives 64."""
COUNTERS = ("TotalEnergyConsumption", 197, 198, 74, 75, 76, 269, 270, 271)


@cache
def _lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDING.read_text(encoding="utf-8").splitlines()]


ABOUT: Mapping[str, str] = _lines()[0]["about"]
FIRST_UUID = ABOUT["uuid"]


@cache
def rounds() -> list[dict[str, dict[str, Any]]]:
    """Each round whole: parts ``nvml``, ``fields`` and ``torch``."""
    whole: dict[str, dict[str, Any]] = {"nvml": {}, "fields": {}, "torch": {}}
    found = []
    for line in _lines()[1:]:
        whole = {part: {**known, **line[part]} for part, known in whole.items()}
        found.append(whole)
    for field in WRAPPED:
        read = [line["fields"][field] for line in found]
        wraps = list(itertools.accumulate(int(now < before) for before, now in itertools.pairwise(read)))
        for line, value, count in zip(found, read, [0, *wraps], strict=True):
            line["fields"] = {**line["fields"], field: value + count * 2**32}
    return found


class RecordedNvml(FakeNvml):
    """As many H200s as there are ``uuids``, each used by process ``pid``; ``cards[n].answers`` may be overridden by ``planted``.

    Args:
        uuids: one for each card.
        clock: monotonic seconds; the recording begins at its first value.
        pid: the process that the recorded memory is shown for.
        planted: answers that win over the recorded ones, by card and by key as in ``Card.answers`` or, for fields, by number.
    """

    def __init__(
        self,
        *uuids: str,
        clock: Callable[[], float] = time.monotonic,
        pid: Callable[[], int] = os.getpid,
        planted: Mapping[str, Mapping[Any, Any]] | None = None,
    ) -> None:
        super().__init__(*(Card(uuid) for uuid in uuids or (FIRST_UUID,)))
        self._clock, self._pid, self._begun = clock, pid, clock()
        self._planted = planted or {}

    def nvmlSystemGetDriverVersion(self) -> Any:
        self._check()
        return self._string(ABOUT["driver"])

    def _check(self, card: Card | None = None) -> None:
        super()._check(card)
        if card is not None:
            self._play(card)

    def _play(self, card: Card) -> None:
        number = int((self._clock() - self._begun) / _lines()[0]["round_seconds"]) + SHIFT * self.cards.index(card)
        turns, place = divmod(number, len(rounds()))
        now, first, last = rounds()[place], rounds()[0], rounds()[-1]
        card.answers, card.fields = {}, {}
        for key, said in now["nvml"].items():
            name, *arguments = json.loads(key)
            if not name.startswith("nvmlDeviceGet"):
                continue
            name = name.removeprefix("nvmlDeviceGet")
            if name == "ComputeRunningProcesses":
                card.processes = [(self._pid(), process["usedGpuMemory"]) for process in said["answer"] if process["pid"] == 0]
                continue
            answer: Any = NVMLError(said["error"]) if "error" in said else said["answer"]
            if name in COUNTERS:
                answer += turns * (last["nvml"][key]["answer"] - first["nvml"][key]["answer"])
            card.answers[(name, *arguments) if arguments else name] = SimpleNamespace(**answer) if isinstance(answer, dict) else answer
        for field, value in now["fields"].items():
            if not isinstance(value, dict):
                rise = last["fields"][field] - first["fields"][field] if int(field) in COUNTERS else 0
                card.fields[int(field)] = value + turns * rise
        for key, answer in self._planted.get(card.uuid, {}).items():
            (card.fields if isinstance(key, int) else card.answers)[key] = answer() if callable(answer) else answer


def recorded_torch(*uuids: str, clock: Callable[[], float] = time.monotonic) -> Any:
    """A module like ``torch`` whose CUDA devices have these UUIDs and the recorded allocator."""
    begun = clock()
    names = uuids or (FIRST_UUID,)

    def memory_stats(device: int) -> dict[str, Any]:
        number = int((clock() - begun) / _lines()[0]["round_seconds"]) + SHIFT * device
        return dict(rounds()[number % len(rounds())]["torch"])

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(names),
        get_device_properties=lambda number: SimpleNamespace(uuid=names[number].removeprefix("GPU-")),
        mem_get_info=lambda device: (140_497_780_736, 150_754_820_096),
        memory_stats=memory_stats,
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="13.0"), _C=SimpleNamespace())
