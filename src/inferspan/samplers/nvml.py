"""NVIDIA GPUs through NVML: which of them are this process's, and their readings as ``Sample``s.

Everything here runs on the sampler thread. A device or a field that fails takes nothing else with it; a lost device reports
only its status; a dead NVML reports nothing. Devices are told apart by UUID, never by position. Nothing raises because a
reading could not be had.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from inferspan import guard, semconv
from inferspan.records import Sample

from . import nvml_rows as rows
from .nvml_devices import Device, is_mig, visible_devices
from .nvml_library import GPU_IS_LOST, UNINITIALIZED, NvmlLibrary, Pause
from .nvml_units import DriverErrors, UnitCounters

__all__ = ["NvmlSampler"]


class _Uninitialized(Exception):
    """NVML reports that it is not initialised."""


class NvmlSampler:
    """Readings of this process's NVIDIA GPUs.

    Args:
        all_gpus: report every GPU of the host instead.
        metrics: those to read; default all.
        cuda_devices: returns ``{UUID: "cuda:N"}`` of the GPUs that the process uses once the application has
            initialised CUDA, else ``None``. Before that, ``CUDA_VISIBLE_DEVICES`` decides, then the GPUs on which NVML
            lists our process; if neither says, none is ours.
        cuda_memory: returns free and total bytes of ``"cuda:N"``, or ``None``; asked where the card has no memory of its own
            for NVML to count.
        library: a module like ``pynvml``, which is imported at the first round if this is ``None``.
        environ: environment to read, default ``os.environ``.
        pid: returns our process id; asked at every round, because a fork changes it.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        all_gpus: bool = False,
        metrics: Collection[str] = frozenset(semconv.DEVICE_METRICS),
        cuda_devices: Callable[[], Mapping[str, str] | None] = lambda: None,
        cuda_memory: Callable[[str], tuple[int, int] | None] = lambda device: None,
        library: ModuleType | None = None,
        environ: Mapping[str, str] | None = None,
        pid: Callable[[], int] = os.getpid,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._all_gpus = all_gpus
        self._metrics = metrics
        self._rows = [row for row in rows.ROWS if row.metric in metrics]
        self._cuda_devices = cuda_devices
        self._cuda_memory = cuda_memory
        self._environ = environ
        self._pid = pid
        self._clock = clock
        self._library = NvmlLibrary(library=library, pid=pid, clock=clock)
        self._devices: dict[str, Device] = {}  # kept for life: what was probed, and where counters began
        self._pauses: dict[str, Pause] = {}
        self._sharing: Mapping[str, bool] = {}
        self._beyond: dict[str, list[UnitCounters | DriverErrors]] = {}
        self._xid: dict[str, Counter[int]] = {}

    def collect(self) -> Sequence[Sample]:
        """Readings of one round; empty without a driver, a binding or a GPU of ours."""
        return [sample for samples in self._each(self._read) for sample in samples]

    def collect_cheap(self) -> Sequence[Sample]:
        """Memory, utilisation, temperature and power alone, in a fraction of the time of a round."""
        return [sample for samples in self._each(self._read_cheap) for sample in samples]

    def energy(self) -> Mapping[str, tuple[float, float]]:
        """Energy counters only, quicker to have than a round: ``{hw.id: (joules, monotonic time of the reading)}``."""
        if semconv.M_ENERGY not in self._metrics:
            return {}
        return dict(self._each(self._read_energy))

    def shared(self, hw_id: str) -> bool:
        """Whether another process computed on the device when it was last looked at.

        True as well if that is not known: NVML hides processes from some containers.
        """
        return self._sharing.get(hw_id, True)

    def close(self) -> None:
        """Shut NVML down if this process initialised it here; a later ``collect`` initialises it again."""
        for source in [source for sources in self._beyond.values() for source in sources] if self._library.is_open else ():
            with contextlib.suppress(Exception):
                source.close()
        self._beyond.clear()
        self._library.close()

    def _each(self, read: Callable[[Device], Any]) -> list[Any]:
        """Results of ``read`` for each device of this process; repeated once if another library has shut NVML down meanwhile."""
        for _ in range(2):
            if not self._library.ready():
                self._sharing = {}
                return []
            try:
                return self._round(read)
            except _Uninitialized:
                self._library.lapse()
        return []

    def _round(self, read: Callable[[Device], Any]) -> list[Any]:
        found, silent, sharing = [], False, {}
        for device in self._ours():
            reading = None
            try:
                reading = read(device)
            except _Uninitialized:
                raise
            except Exception as error:
                guard.report("samplers.nvml.device", error)
            if reading is None:
                silent = True
                continue
            sharing[device.uuid] = device.shared
            if reading:
                found.append(reading)
        self._sharing = sharing
        if silent and not found:
            # The devices were taken away while the library still answers.
            self._library.fail()
        else:
            self._library.works()
        return found

    # ------------------------------------------------------------------------------------------------ devices of ours

    def _ours(self) -> list[Device]:
        """The devices to report: those that cannot be reached just now are left out, those that are lost are not."""
        cuda: Mapping[str, str] | None = None
        with guard.contain("samplers.nvml.cuda_devices"):
            cuda = self._cuda_devices()
        found: dict[str, Device] = {}
        for name in self._names(cuda):
            device = self._device(name)
            if device is not None:
                found[device.uuid] = device
                device.label(next((cuda[key] for key in (name, device.uuid) if key in cuda), None) if cuda else None)
        return list(found.values())

    def _names(self, cuda: Mapping[str, str] | None) -> list[str]:
        inventory = self._library.inventory
        # NVML does not list a lost GPU, so devices of this process stay its own where the list decides.
        lost = [device.uuid for device in self._devices.values() if device.is_lost]
        if self._all_gpus:
            return [*(entry.uuid for entry in inventory.entries()), *lost]
        if cuda is not None:
            return list(cuda)
        visible = visible_devices(os.environ if self._environ is None else self._environ)
        names = None if visible is None else inventory.named(visible)
        return [*inventory.used_by(self._pid(), known=self._devices), *lost] if names is None else names

    def _device(self, name: str) -> Device | None:
        """The device of a UUID or of the beginning of one; it has no handle if it is lost."""
        library, known, pause = self._library, self._devices.get(name), self._pauses.get(name)
        if known is not None and known.handle is not None and known.init == library.number:
            return known
        if pause is not None and not pause.over:
            return known if known is not None and known.is_lost else None
        try:
            entry = library.inventory.find(name)
        except Exception as error:
            self._judge(error)
            self._pause(name)
            if getattr(error, "value", None) != GPU_IS_LOST:
                return None
            device = self._devices.setdefault(name, Device(name, self._rows))
            device.is_lost, device.handle = True, None
            return device
        if entry is None:
            library.inventory.forget()  # MIG instances come and go
            self._pause(name)
            return None
        device = self._devices.setdefault(entry.uuid, Device(entry.uuid, self._rows))
        self._devices[name] = device
        if device.handle is None or device.init != library.number:
            device.attach(library.library, entry, init=library.number)
            self._beyond[device.uuid] = self._open_beyond(device, split=entry.split)
        return device

    def _pause(self, name: str) -> None:
        self._pauses.setdefault(name, Pause(self._clock)).begin()

    def _judge(self, error: Exception) -> None:
        if getattr(error, "value", None) == UNINITIALIZED:
            raise _Uninitialized from None

    # ------------------------------------------------------------------------------------------------ readings

    def _read(self, device: Device) -> list[Sample] | None:
        """Samples of a device; ``None`` if it answered nothing at all."""
        query = self._query(device, device.rows)
        samples = self._samples(device, query, device.rows)
        if samples is None or device.handle is None:
            return samples
        if semconv.M_ENERGY in self._metrics:
            self._look_around(device, query)
        samples += self._read_beyond(device)
        if is_mig(device.uuid) or semconv.M_HW_STATUS not in self._metrics:
            return samples
        return samples + self._status(device, rows.state(query))

    def _open_beyond(self, device: Device, *, split: bool) -> list[UnitCounters | DriverErrors]:
        """What is read of a card by other ways than rows."""
        if split or is_mig(device.uuid):
            return []
        library = self._library.library
        found: list[UnitCounters | DriverErrors] = [UnitCounters(library, device.handle, self._metrics, self._clock)]
        if semconv.M_XID_ERRORS in self._metrics:
            found.append(DriverErrors(library, device.handle, self._xid.setdefault(device.uuid, Counter())))
        return found

    def _read_beyond(self, device: Device) -> list[Sample]:
        samples = []
        for source in self._beyond.get(device.uuid, ()):
            try:
                samples += [Sample(metric, value, device.attributes(attributes)) for metric, value, attributes in source.read()]
            except Exception as error:
                self._judge(error)
        return samples

    def _read_cheap(self, device: Device) -> list[Sample] | None:
        wanted = [row for row in device.rows if rows.is_cheap(row)]
        return self._samples(device, self._query(device, wanted), wanted)

    def _samples(self, device: Device, query: rows.Query, wanted: Sequence[rows.Row]) -> list[Sample] | None:
        """Samples of some rows, the status of a lost device, or ``None`` if it answered nothing at all."""
        if device.handle is None:
            return self._status(device, rows.FAILED)
        values, hopeless = self._values(device, query, wanted)
        if device.is_lost:
            # Readings from before the loss was noticed would be stale.
            self._drop(device)
            return self._status(device, rows.FAILED)
        if wanted and not values:
            # A handle that has become void is refused like a function that is not supported: nothing is learnt about the rows.
            self._drop(device)
            return None
        device.rows = [row for row in device.rows if row not in hopeless]
        samples = [Sample(row.metric, value, device.attributes(row.attributes)) for row, value in values if value is not None]
        for name in self._names_of(device):
            self._pauses.pop(name, None)
        if semconv.M_GPU_MEMORY_LIMIT in self._metrics and not any(sample.metric == semconv.M_GPU_MEMORY_LIMIT for sample in samples):
            samples += self._unified_memory(device)
        return samples

    def _read_energy(self, device: Device) -> tuple[str, tuple[float, float]] | tuple[()]:
        if device.handle is None:
            return ()
        meter = [row for row in device.rows if row.metric == semconv.M_ENERGY]
        query = self._query(device, meter)
        before = self._clock()
        values = [value for _, value in self._values(device, query, meter)[0] if value is not None]
        moment = (before + self._clock()) / 2
        self._look_around(device, query)
        return (device.uuid, (values[0], moment)) if values else ()

    def _query(self, device: Device, wanted: Sequence[rows.Row]) -> rows.Query:
        fields = [row.field for row in wanted if row.field is not None]
        return rows.Query(self._library.library, device.handle, pid=self._pid(), fields=fields)

    def _values(
        self, device: Device, query: rows.Query, wanted: Sequence[rows.Row]
    ) -> tuple[list[tuple[rows.Row, float | None]], list[rows.Row]]:
        """The rows that the device answered, each with its value, and those that it will never answer."""
        values: list[tuple[rows.Row, float | None]] = []
        hopeless: list[rows.Row] = []
        for row in wanted:
            try:
                value = row.value(query)
            except Exception as error:
                self._judge(error)
                if getattr(error, "value", None) == GPU_IS_LOST:
                    device.is_lost = True
                    break
                if rows.is_unsupported(error):
                    hopeless.append(row)
                continue
            values.append((row, value if value is None or not row.counter else device.risen(row, value)))
        return values, hopeless

    def _drop(self, device: Device) -> None:
        """Look the device up again after a pause."""
        device.handle = None
        self._library.inventory.forget()
        for name in self._names_of(device):
            self._pause(name)

    def _names_of(self, device: Device) -> list[str]:
        return [name for name, other in self._devices.items() if other is device]

    def _status(self, device: Device, current: str) -> list[Sample]:
        if semconv.M_HW_STATUS not in self._metrics:
            return []
        return [Sample(semconv.M_HW_STATUS, value, device.attributes(state)) for value, state in rows.status(current)]

    def _unified_memory(self, device: Device) -> list[Sample]:
        """CUDA's counts of memory that the card shares with its host, which NVML does not count."""
        free = total = 0
        with guard.contain("samplers.nvml.cuda_memory"):
            counted = self._cuda_memory(device.cuda) if device.cuda is not None else None
            if counted is not None:
                free, total = map(int, counted)
        if total <= 0:
            return []
        found = {
            semconv.M_GPU_MEMORY_USAGE: total - free,
            semconv.M_GPU_MEMORY_LIMIT: total,
            semconv.M_GPU_MEMORY_UTILIZATION: (total - free) / total,
        }
        return [Sample(metric, value, device.attributes({})) for metric, value in found.items()]

    def _look_around(self, device: Device, query: rows.Query) -> None:
        device.shared = True
        try:
            device.shared = {process.pid for process in query.processes()} != {query.pid}
        except Exception as error:
            self._judge(error)
