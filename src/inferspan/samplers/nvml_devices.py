"""Which GPUs there are, and which of them a name means: UUIDs, beginnings of UUIDs, MIG instances, ``CUDA_VISIBLE_DEVICES``.

NVML's numbering is not CUDA's, so nothing is matched by position, except where the environment says that both count by PCI
bus, or where there is only one GPU. Exceptions of NVML pass through to the sampler, which interprets them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.records import AttributeValue

from .nvml_rows import ANYWHERE, ROWS, UNSPLIT, Row
from .rise import Rises

__all__ = ["Device", "Entry", "Inventory", "is_mig", "visible_devices"]

_NOT_THERE = frozenset({2, 3, 6, 13})
"""Error codes for a UUID that NVML does not know: invalid argument, not supported, not found, function not found."""


def is_mig(uuid: str) -> bool:
    """Whether the UUID is that of a MIG instance."""
    return uuid.startswith("MIG-")


def visible_devices(environ: Mapping[str, str]) -> tuple[bool, list[str]] | None:
    """Devices named by ``CUDA_VISIBLE_DEVICES``.

    Returns:
        Whether numbers count by PCI bus, and the names up to the first one that CUDA would not take; ``None`` if the
        variable is not set.
    """
    raw = environ.get("CUDA_VISIBLE_DEVICES")
    if raw is None:
        return None
    names: list[str] = []
    for name in (part.strip() for part in raw.split(",")):
        if not (_is_index(name) or name.startswith(("GPU-", "MIG-"))):
            break
        names.append(name)
    return environ.get("CUDA_DEVICE_ORDER", "").upper() == "PCI_BUS_ID", names


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Entry(NamedTuple):
    """A GPU or a MIG instance as NVML lists it; ``split`` is true for a card in MIG mode."""

    uuid: str
    handle: Any
    split: bool


class Inventory:
    """The GPUs of this host, listed when first asked for and again after ``forget``."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._cards: list[Entry | None] | None = None
        self._instances: list[Entry] = []

    def forget(self) -> None:
        """List again at the next question: a device was lost, or MIG instances were changed."""
        self._cards = None

    def entries(self) -> list[Entry]:
        """Every card and every MIG instance that answers."""
        return [card for card in self._list() if card is not None] + self._instances

    def find(self, name: str) -> Entry | None:
        """The device of a UUID, or of the only UUID that begins so; ``None`` if there is none."""
        # torch gives the UUID of a MIG instance without saying that it is one.
        for uuid in (name, "MIG-" + name[4:]) if name.startswith("GPU-") else (name,):
            try:
                handle = self._by_uuid(uuid)
                # Some drivers take the beginning of a UUID here: ask for the whole.
                return Entry(_text(self._library.nvmlDeviceGetUUID(handle)), handle, not is_mig(uuid) and self._is_split(handle))
            except Exception as error:
                if getattr(error, "value", None) not in _NOT_THERE and not isinstance(error, AttributeError | TypeError):
                    raise
        matches = [entry for entry in self.entries() if entry.uuid.startswith(name)]
        return matches[0] if len(matches) == 1 else None

    def named(self, visible: tuple[bool, Sequence[str]]) -> list[str] | None:
        """UUIDs, or beginnings of some, of visible devices; ``None`` if the numbers are ambiguous."""
        by_bus, names = visible
        found: list[str] = []
        for name in names:
            if not _is_index(name):
                found.append(name)
                continue
            cards = self._list()
            place = int(name)
            if not by_bus and len(cards) > 1:
                return None
            card = cards[place] if place < len(cards) else None
            if card is None or card.split:
                return None
            found.append(card.uuid)
        return found

    def used_by(self, pid: int, *, known: Collection[str] = ()) -> list[str]:
        """UUIDs of the devices on which NVML lists the process, and of ``known`` ones that do not answer."""
        found = []
        for entry in self.entries():
            try:
                processes = self._library.nvmlDeviceGetComputeRunningProcesses(entry.handle)
                # A card split by MIG lists the processes of its instances.
                ours = not entry.split and any(process.pid == pid for process in processes)
            except Exception:
                ours = entry.uuid in known
            if ours:
                found.append(entry.uuid)
        return found

    def _by_uuid(self, uuid: str) -> Any:
        try:
            return self._library.nvmlDeviceGetHandleByUUID(uuid)
        except TypeError:
            return self._library.nvmlDeviceGetHandleByUUID(uuid.encode())  # bindings of Python 2's time

    def _is_split(self, handle: Any) -> bool:
        try:
            return bool(self._library.nvmlDeviceGetMigMode(handle)[0])
        except Exception:
            return False

    def _list(self) -> list[Entry | None]:
        if self._cards is None:
            cards: list[Entry | None] = []
            self._instances = []
            count = _ask(self._library, "nvmlDeviceGetCount")
            if count is None:
                return []
            for place in range(count if isinstance(count, int) else 0):
                card = self._card(place)
                cards.append(card)
                if card is not None and card.split:
                    self._instances += self._split(card)
            self._cards = cards
        return self._cards

    def _card(self, place: int) -> Entry | None:
        try:
            handle = self._library.nvmlDeviceGetHandleByIndex(place)
            return Entry(_text(self._library.nvmlDeviceGetUUID(handle)), handle, self._is_split(handle))
        except Exception:
            return None  # one GPU that does not answer hides none of the others

    def _split(self, card: Entry) -> list[Entry]:
        instances = []
        try:
            count = self._library.nvmlDeviceGetMaxMigDeviceCount(card.handle)
        except Exception:
            return []
        for place in range(count):
            try:
                handle = self._library.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, place)
                instances.append(Entry(_text(self._library.nvmlDeviceGetUUID(handle)), handle, False))
            except Exception:
                continue  # places without an instance
        return instances


class Device:
    """State of a device for the life of the process: its readable rows, the first values of its counters, its attributes."""

    def __init__(self, uuid: str, rows: Sequence[Row] = ROWS) -> None:
        self.uuid = uuid
        self.handle: Any = None
        self.init = 0
        self.is_lost = False
        self.cuda: str | None = None
        self.shared = True
        self.rows: list[Row] = [row for row in rows if row.where == ANYWHERE or not is_mig(uuid)]
        self._base: dict[str, AttributeValue] = {semconv.HW_ID: uuid, semconv.HW_VENDOR: "NVIDIA"}
        self._rises = Rises()

    def attach(self, library: Any, entry: Entry, *, init: int) -> None:
        """Take a handle, which is good for one init of NVML, and the names that NVML has for the device."""
        self.handle, self.init, self.is_lost = entry.handle, init, False
        if entry.split:
            self.rows = [row for row in self.rows if row.where != UNSPLIT]
        card = entry.handle
        if is_mig(self.uuid):
            card = _ask(library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", entry.handle)
            self._set(semconv.HW_PARENT, _ask(library, "nvmlDeviceGetUUID", card))
            self._set(semconv.MIG_GPU_INSTANCE, _ask(library, "nvmlDeviceGetGpuInstanceId", entry.handle))
            self._set(semconv.MIG_COMPUTE_INSTANCE, _ask(library, "nvmlDeviceGetComputeInstanceId", entry.handle))
        index = _ask(library, "nvmlDeviceGetIndex", card)
        self._set(semconv.HW_NAME, None if index is None else f"nvidia{index}")
        self._set(semconv.HW_MODEL, _ask(library, "nvmlDeviceGetName", entry.handle))
        self._set(semconv.HW_DRIVER_VERSION, _ask(library, "nvmlSystemGetDriverVersion"))
        self._set(semconv.HW_FIRMWARE_VERSION, _ask(library, "nvmlDeviceGetVbiosVersion", card))

    def label(self, cuda: str | None) -> None:
        """Set the application's CUDA number of the device."""
        self.cuda = cuda
        if cuda is None:
            self._base.pop(semconv.DEVICE, None)
        else:
            self._base[semconv.DEVICE] = cuda

    def attributes(self, extra: Mapping[str, str]) -> dict[str, AttributeValue]:
        """Attributes of one reading."""
        return {**self._base, **extra}

    def risen(self, row: Row, value: float) -> float:
        """By how much a counter has risen since its first reading; at a reset of the hardware's counter the part before it is lost."""
        return self._rises(ROWS.index(row), value)

    def _set(self, key: str, value: Any) -> None:
        if value is not None:
            self._base[key] = _text(value) if isinstance(value, bytes) else value


def _ask(library: Any, function: str, *args: Any) -> Any:
    if None in args:
        return None
    try:
        return getattr(library, function)(*args)
    except Exception:
        return None
