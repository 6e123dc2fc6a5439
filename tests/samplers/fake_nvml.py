"""A module that behaves like ``pynvml``, over cards that a test describes: what each answers, and with which error.

The numbers of ``hopper_card`` were recorded on an H100 with driver 580.159.04; what that card does not support raises here too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

SENTINEL = 2**64 - 1
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, LOST, UNINITIALIZED, UNKNOWN = 3, 4, 6, 15, 1, 999
INVALID_ARGUMENT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 2, 12, 13


class NVMLError(Exception):
    """As in the binding: the code is in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass(eq=False)
class Card:
    """One GPU or MIG instance; ``answers`` by function name (without ``nvmlDeviceGet``) and arguments, else not supported."""

    uuid: str
    answers: dict[Any, Any] = field(default_factory=dict)
    fields: dict[int, Any] = field(default_factory=dict)
    processes: list[tuple[int, int | None]] | int = field(default_factory=list)
    split: bool = False
    instances: list[Card] = field(default_factory=list)
    parent: Card | None = None
    narrow: frozenset[int] = frozenset()
    """Fields that have 32 bits."""
    error: int | None = None
    """Raised by everything that is asked of the card."""


class FakeNvml(ModuleType):
    """The module; ``inits``, ``shutdowns`` and ``calls`` count, ``error`` is raised by every call while it is set."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2

    def __init__(self, *cards: Card, text: type = str) -> None:
        super().__init__("pynvml")
        self.cards = list(cards)
        self.text = text
        self.inits = self.shutdowns = self.depth = 0
        self.error: int | None = None
        self.init_error: int | None = None
        self.calls: Counter[str] = Counter()

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.inits += 1
        self.depth += 1

    def nvmlShutdown(self) -> None:
        self._check()
        self.shutdowns += 1
        self.depth -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        self._check()
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        self._check()
        for card in [*self.cards, *(instance for whole in self.cards for instance in whole.instances)]:
            if card.uuid == uuid:
                self._check(card)
                return card
        raise NVMLError(NOT_FOUND)

    def nvmlDeviceGetUUID(self, card: Card) -> Any:
        self._check(card)
        return self._string(card.uuid)

    def nvmlDeviceGetIndex(self, card: Card) -> int:
        self._check(card)
        return self.cards.index(card)

    def nvmlSystemGetDriverVersion(self) -> Any:
        self._check()
        return self._string("580.159.04")

    def nvmlDeviceGetMigMode(self, card: Card) -> tuple[int, int]:
        self._check(card)
        return (int(card.split), int(card.split))

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        self._check(card)
        return 7 if card.split else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        self._check(card)
        if index >= len(card.instances):
            raise NVMLError(NOT_FOUND)
        return card.instances[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, card: Card) -> Card:
        self._check(card)
        if card.parent is None:
            raise NVMLError(INVALID_ARGUMENT)
        return card.parent

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        self._check(card)
        self.calls["nvmlDeviceGetComputeRunningProcesses"] += 1
        if isinstance(card.processes, int):
            raise NVMLError(card.processes)
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in card.processes]

    def nvmlDeviceGetFieldValues(self, card: Card, wanted: list[Any]) -> list[SimpleNamespace]:
        self._check(card)
        self.calls["fields"] += len(wanted)
        numbers = [item[0] if isinstance(item, tuple) else item for item in wanted]
        return [
            SimpleNamespace(
                fieldId=number,
                nvmlReturn=0 if number in card.fields else NOT_SUPPORTED,
                valueType=1 if number in card.narrow else 3,
                value=SimpleNamespace(ullVal=card.fields.get(number), uiVal=card.fields.get(number, 0) % 2**32),
            )
            for number in numbers
        ]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def call(card: Card, *args: Any, **options: Any) -> Any:
            self._check(card)
            self.calls[name] += 1
            key = name.removeprefix("nvmlDeviceGet")
            answer = card.answers.get((key, *args), card.answers.get(key, NVMLError(NOT_SUPPORTED)))
            if isinstance(answer, Exception):
                raise answer
            return self._string(answer) if isinstance(answer, str) else answer

        return call

    def _check(self, card: Card | None = None) -> None:
        if self.error is not None:
            raise NVMLError(self.error)
        if self.depth <= 0:
            raise NVMLError(UNINITIALIZED)
        if card is not None and card.error is not None:
            raise NVMLError(card.error)

    def _string(self, text: str) -> Any:
        return text.encode() if self.text is bytes else text


def hopper_card(uuid: str = "GPU-00cb6b6e-a504-ebd9-6345-b27dd00fbaa1", *, pid: int = 413) -> Card:
    """A card as recorded, under load by process ``pid``."""
    clocks = {("ClockInfo", kind): mhz for kind, mhz in enumerate((1980, 1980, 2619, 1545))}
    limits = {("MaxClockInfo", kind): mhz for kind, mhz in enumerate((1980, 1980, 2619, 1545))}
    return Card(
        uuid,
        answers={
            "Name": "NVIDIA H100 80GB HBM3",
            "VbiosVersion": "96.00.DA.00.0C",
            "UtilizationRates": SimpleNamespace(gpu=57, memory=5),
            "EncoderUtilization": [0, 167000],
            "DecoderUtilization": [3, 167000],
            "JpgUtilization": [0, 167000],
            "OfaUtilization": [0, 167000],
            "MemoryInfo": SimpleNamespace(total=85520809984, used=858587136, free=84395884544),
            "TotalEnergyConsumption": 1_502_053_524,
            "PowerUsage": 650_585,
            "EnforcedPowerLimit": 700_000,
            ("Temperature", 0): 54,
            ("TemperatureThreshold", 0): 95,
            ("TemperatureThreshold", 1): 89,
            ("TemperatureThreshold", 3): 87,
            **clocks,
            **limits,
            "CurrentClocksEventReasons": 0x4,
            ("TotalEccErrors", 0, 0): 7,
            ("TotalEccErrors", 1, 0): 0,
            ("MemoryErrorCounter", 0, 0, 2): 7,
            ("MemoryErrorCounter", 1, 0, 2): 0,
            "RemappedRows": (1, 0, 0, 0),
            "PcieReplayCounter": 12,
            "CurrPcieLinkGeneration": 5,
            "CurrPcieLinkWidth": 16,
            "PerformanceState": 0,
        },
        fields={197: 8_985_856, 198: 16_250_388, 74: 3_000_000_000, 75: 0, 76: 0, 82: 43},
        processes=[(pid, 849_346_560)],
    )


def split_card() -> Card:
    """A card in MIG mode with two instances, one of which says that it is idle rather than that it cannot know."""
    card = Card("GPU-cccc", answers={"Name": "NVIDIA H100 80GB HBM3", "UtilizationRates": SimpleNamespace(gpu=0, memory=0)}, split=True)
    for number, pid in ((0, 11), (1, 413)):
        card.instances.append(
            Card(
                f"MIG-{number}{number}{number}{number}",
                answers={
                    "Name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
                    "GpuInstanceId": number + 1,
                    "ComputeInstanceId": 0,
                    "UtilizationRates": SimpleNamespace(gpu=0, memory=0),
                    "PowerUsage": 650_585,
                    "MemoryInfo": SimpleNamespace(total=40 << 30, used=10 << 30, free=30 << 30),
                },
                processes=[(pid, 5 << 30)],
                parent=card,
            )
        )
    return card
