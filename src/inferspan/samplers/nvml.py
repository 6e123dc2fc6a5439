"""NVIDIA GPUs through NVML: which of them are this process's, and their readings as ``Sample``s.

Everything here runs on the sampler thread. One init has one shutdown; a device or a field that fails takes nothing else with
it; a lost device reports only its status; a dead NVML reports nothing and is tried again with growing pauses. Devices are
told apart by UUID, never by position. Nothing raises because a reading could not be had.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from inferspan import guard, semconv
from inferspan.records import Sample
from inferspan.samplers import nvml_rows as rows
from inferspan.samplers.nvml_devices import Device, Inventory, is_mig, visible_devices

__all__ = ["NvmlSampler"]

_log = logging.getLogger("inferspan")

_UNINITIALIZED, _LIBRARY_NOT_FOUND, _GPU_IS_LOST = 1, 12, 15
_LONGEST_PAUSE = 60.0


class _Uninitialized(Exception):
    """Somebody else's shutdown took our initialisation with it."""


class _Pause:
    """A growing pause after failures: 1, 2, 4, ... 60 seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._length = 1.0
        self._until = float("-inf")

    def begin(self) -> None:
        self._until = self._clock() + self._length
        self._length = min(2 * self._length, _LONGEST_PAUSE)

    @property
    def over(self) -> bool:
        return self._clock() >= self._until


class NvmlSampler:
    """Readings of this process's NVIDIA GPUs.

    Args:
        all_gpus: report every GPU of the host instead.
        cuda_devices: returns ``{UUID: "cuda:N"}`` of the GPUs that the process uses once the application has
            initialised CUDA, else ``None``. Before that, ``CUDA_VISIBLE_DEVICES`` decides, then the GPUs on which NVML
            lists our process; if neither says, none is ours.
        library: a module like ``pynvml``, which is imported at the first round if this is ``None``.
        environ: environment to read, default ``os.environ``.
        pid: returns our process id; asked at every round, because a fork changes it.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        all_gpus: bool = False,
        cuda_devices: Callable[[], Mapping[str, str] | None] = lambda: None,
        library: ModuleType | None = None,
        environ: Mapping[str, str] | None = None,
        pid: Callable[[], int] = os.getpid,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._all_gpus = all_gpus
        self._cuda_devices = cuda_devices
        self._library: Any = library
        self._environ = environ
        self._pid = pid
        self._clock = clock
        self._missing = False
        self._owner: int | None = None  # process that holds the initialisation
        self._pause = _Pause(clock)
        self._inventory: Inventory | None = None
        self._devices: dict[str, Device] = {}  # kept for life: what was probed and where counters began
        self._pauses: dict[str, _Pause] = {}
        self._sharing: Mapping[str, bool] = {}

    def collect(self) -> Sequence[Sample]:
        """Readings of one round; empty without a driver, a binding or a GPU of ours."""
        samples: list[Sample] = []
        for reading in self._each(self._read):
            samples += reading
        return samples

    def energy(self) -> Mapping[str, tuple[float, float]]:
        """Energy counters only, which are quicker to have than a round: ``{hw.id: (joules, monotonic time of the reading)}``."""
        return {device.uuid: reading for device, reading in self._each(self._read_energy)}

    def shared(self, hw_id: str) -> bool:
        """Whether another process than ours computed on the device when it was last looked at; true if that is not known."""
        return self._sharing.get(hw_id, True)

    def close(self) -> None:
        """Shut NVML down if this process initialised it here; a later ``collect`` begins anew."""
        owned, self._owner = self._owner == self._pid(), None
        self._inventory = None
        for device in self._devices.values():
            device.handle = None
        if owned:
            try:
                self._library.nvmlShutdown()
            except Exception as error:
                _log.debug("nvmlShutdown: %r", error)

    # ------------------------------------------------------------------------------------------------ the whole of NVML

    def _each(self, read: Callable[[Device], Any]) -> list[Any]:
        """What ``read`` has of each device of ours that answers; once more from the start if NVML was shut down under us."""
        for _ in range(2):
            if not self._ready():
                return []
            try:
                return self._round(read)
            except _Uninitialized:
                self._owner = None  # no shutdown of ours is due any more
        return []

    def _round(self, read: Callable[[Device], Any]) -> list[Any]:
        found, silent, sharing = [], 0, {}
        for device in self._ours():
            reading = read(device)
            if reading is None:
                silent += 1
                continue
            sharing[device.uuid] = device.shared
            if reading:
                found.append(reading)
        self._sharing = sharing
        if silent and not found:
            # The driver's devices were taken away while the library still answers.
            self._died()
            return []
        self._pause.reset()
        return found

    def _ready(self) -> bool:
        if self._missing:
            return False
        pid = self._pid()
        if self._owner is not None and self._owner != pid:
            self._owner = None  # forked: the initialisation is the parent's, and so is its shutdown
        if self._owner is None and not (self._pause.over and self._open(pid)):
            return False
        for _ in range(2):
            try:
                self._library.nvmlDeviceGetCount()
                return True
            except Exception as error:
                if getattr(error, "value", None) != _UNINITIALIZED:
                    break
            if not self._open(pid):
                return False
        self._died()
        return False

    def _open(self, pid: int) -> bool:
        self._owner, self._inventory = None, None
        for device in self._devices.values():
            device.handle = None
        try:
            if self._library is None:
                import pynvml

                self._library = pynvml
            self._library.nvmlInit()
        except ImportError:
            self._missing = True
            _log.info("GPU readings are off: the package nvidia-ml-py is not installed")
            return False
        except Exception as error:
            if getattr(error, "value", None) == _LIBRARY_NOT_FOUND:
                self._missing = True
                _log.info("GPU readings are off: this host has no NVIDIA driver")
            self._pause.begin()
            return False
        self._owner = pid
        self._inventory = Inventory(self._library)
        return True

    def _died(self) -> None:
        self.close()
        self._sharing = {}
        self._pause.begin()

    # ------------------------------------------------------------------------------------------------ devices of ours

    def _ours(self) -> list[Device]:
        """The devices to report, those that cannot be reached just now left out, lost ones kept."""
        assert self._inventory is not None
        cuda: Mapping[str, str] | None = None
        with guard.contain("samplers.nvml.cuda_devices"):
            cuda = self._cuda_devices()
        found: dict[str, Device] = {}
        for name in self._names(cuda):
            device = self._device(name)
            if device is not None:
                found[device.uuid] = device
                label = next((cuda[key] for key in (name, device.uuid) if key in cuda), None) if cuda else None
                device.label(label)
        return list(found.values())

    def _names(self, cuda: Mapping[str, str] | None) -> list[str]:
        assert self._inventory is not None
        # A lost GPU is listed no more, so what was ours stays ours where the list decides.
        lost = [device.uuid for device in self._devices.values() if device.is_lost]
        if self._all_gpus:
            return [*(entry.uuid for entry in self._inventory.entries()), *lost]
        if cuda is not None:
            return list(cuda)
        visible = visible_devices(os.environ if self._environ is None else self._environ)
        if visible is not None:
            names = self._inventory.named(visible)
            if names is not None:
                return names
        return [*self._inventory.used_by(self._pid()), *lost]

    def _device(self, name: str) -> Device | None:
        """The device of a UUID or of the beginning of one; its handle is ``None`` if it is lost."""
        assert self._inventory is not None
        known = self._devices.get(name)
        if known is not None and known.handle is not None:
            return known
        pause = self._pauses.get(name)
        if pause is not None and not pause.over:
            return known if known is not None and known.is_lost else None
        try:
            entry = self._inventory.find(name)
        except Exception as error:
            self._judge(error)
            self._pauses.setdefault(name, _Pause(self._clock)).begin()
            if getattr(error, "value", None) != _GPU_IS_LOST:
                return None
            device = self._devices.setdefault(name, Device(name))
            device.is_lost = True
            return device
        if entry is None:
            self._pauses.setdefault(name, _Pause(self._clock)).begin()
            return None
        device = self._devices.setdefault(entry.uuid, Device(entry.uuid))
        if name != entry.uuid:
            self._devices[name] = device
        if device.handle is None:
            device.attach(self._library, entry)
        return device

    def _judge(self, error: Exception) -> None:
        if getattr(error, "value", None) == _UNINITIALIZED:
            raise _Uninitialized from None

    # ------------------------------------------------------------------------------------------------ readings

    def _read(self, device: Device) -> list[Sample] | None:
        """Samples of a device; ``None`` if it answered nothing at all."""
        if device.handle is None:
            return self._lost(device)
        query = self._query(device)
        samples: list[Sample] = []
        answered = False
        for row, value in self._values(device, query, device.rows):
            answered = True
            if value is not None:
                samples.append(Sample(row.metric, value, device.attributes(row.attributes)))
        if device.is_lost:
            return self._lost(device)
        if not answered and device.rows:
            self._drop(device)
            return None
        for name in self._names_of(device):
            self._pauses.pop(name, None)
        self._look_around(device, query)
        if not is_mig(device.uuid):
            samples += self._status(device, rows.state(query))
        return samples

    def _read_energy(self, device: Device) -> tuple[Device, tuple[float, float]] | tuple[()]:
        if device.handle is None:
            return ()
        query = self._query(device)
        before = self._clock()
        meter = [row for row in device.rows if row.metric == semconv.M_ENERGY]
        values = [value for _, value in self._values(device, query, meter) if value is not None]
        moment = (before + self._clock()) / 2
        self._look_around(device, query)
        return (device, (values[0], moment)) if values else ()

    def _query(self, device: Device) -> rows.Query:
        fields = [row.field for row in device.rows if row.field is not None]
        return rows.Query(self._library, device.handle, pid=self._pid(), fields=fields)

    def _values(self, device: Device, query: rows.Query, wanted: Sequence[rows.Row]) -> Iterator[tuple[rows.Row, float | None]]:
        """Each row that the device answered, with its value; rows that it will never answer are taken off the device."""
        for row in list(wanted):
            try:
                value = row.value(query)
            except Exception as error:
                self._judge(error)
                if getattr(error, "value", None) == _GPU_IS_LOST:
                    device.is_lost = True
                    return
                if rows.is_unsupported(error):
                    device.rows.remove(row)
                    yield row, None
                continue
            yield row, value if value is None or not row.counter else device.risen(row, value)

    def _lost(self, device: Device) -> list[Sample]:
        """A device that fell off the bus has one reading, its status; everything else would be stale."""
        if device.handle is not None:
            self._drop(device)
        return self._status(device, rows.FAILED)

    def _drop(self, device: Device) -> None:
        assert self._inventory is not None
        device.handle = None
        self._inventory.forget()
        for name in self._names_of(device):
            self._pauses.setdefault(name, _Pause(self._clock)).begin()

    def _names_of(self, device: Device) -> list[str]:
        return [name for name, other in self._devices.items() if other is device]

    def _status(self, device: Device, current: str) -> list[Sample]:
        return [Sample(semconv.M_HW_STATUS, value, device.attributes(state)) for value, state in rows.status(current)]

    def _look_around(self, device: Device, query: rows.Query) -> None:
        try:
            pids = {process.pid for process in query.processes()}
        except Exception as error:
            self._judge(error)
            device.shared = True
        else:
            device.shared = len(pids) > 1 or bool(pids and query.pid not in pids and not device.is_labelled)

