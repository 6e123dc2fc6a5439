"""GPUs: NVML and GPM for readings, CUDA for models, CUPTI for the profiler; what each is allowed to do here.

torch is imported by ``cuda``, which creates a CUDA context where there is a GPU: it runs in the doctor's process, not in a program.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inferspan.doctor.findings import Finding, Look, note, ok, problem, warning
from inferspan.doctor.settings import in_force
from inferspan.text.numbers import counted

__all__ = ["cuda", "nvml"]

_NO_LIBRARY, _NO_DRIVER, _NO_PERMISSION, _NOT_SUPPORTED, _MISMATCH = 12, 9, 4, 3, 18
_FIXES = {
    _NO_LIBRARY: "in a container, start it with its GPUs (docker run --gpus all) and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    _NO_DRIVER: "load the kernel module of the NVIDIA driver (modprobe nvidia)",
    _NO_PERMISSION: "let this user open /dev/nvidiactl and /dev/nvidia*",
    _MISMATCH: "the driver was updated while it ran: restart the machine",
}
_PARAMETERS = Path("/proc/driver/nvidia/params")


def nvml(look: Look) -> Iterator[Finding]:
    """The driver's readings, and GPM."""
    if not in_force(look).nvml:
        yield note("NVML", "switched off by the setting nvml")
        return
    try:
        import pynvml
    except ImportError as error:
        yield problem("NVML", f"its Python package cannot be imported ({error})", "pip install nvidia-ml-py")
        return
    try:
        pynvml.nvmlInit()
    except Exception as error:
        yield _no_nvml(error)
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
        yield ok("NVML", f"driver {_text(pynvml.nvmlSystemGetDriverVersion())}, {counted(count, 'GPU')}")
        for index in range(count):
            yield from _gpu(pynvml, index)
    except Exception as error:
        yield problem("NVML", f"it fails: {_words(error)}", "nvidia-smi should work first; look at dmesg")
    finally:
        pynvml.nvmlShutdown()


def _no_nvml(error: Exception) -> Finding:
    value = getattr(error, "value", None)
    if value in (_NO_LIBRARY, _NO_DRIVER) and not Path("/dev/nvidiactl").exists() and not Path("/proc/driver/nvidia").exists():
        return note("NVML", "this host has no NVIDIA driver: no readings of GPUs")
    return problem("NVML", _words(error), _FIXES.get(value or 0, "nvidia-smi should work first"))


def _gpu(pynvml: Any, index: int) -> Iterator[Finding]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = f"GPU {index}"
    memory = _asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    size = f", {memory / 2**30:.0f} GiB" if isinstance(memory, int) else ""
    yield note(name, f"{_text(pynvml.nvmlDeviceGetName(handle))}{size}")
    readings = {
        "utilisation": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "energy": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "PCIe throughput": lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        "processes": lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
    }
    failed = {reading: found for reading, ask in readings.items() if isinstance(found := _asked(ask), Exception)}
    refused = [reading for reading, error in failed.items() if getattr(error, "value", None) == _NO_PERMISSION]
    missing = [reading for reading in failed if reading not in refused]
    if refused:
        yield warning(f"{name} readings", f"not allowed: {', '.join(refused)}", _FIXES[_NO_PERMISSION])
    if missing:
        yield note(f"{name} readings", f"this card has no {', '.join(missing)}")
    if not failed:
        yield ok(f"{name} readings", ", ".join(readings))
    yield _gpm(pynvml, handle, f"{name} GPM")


def _gpm(pynvml: Any, handle: Any, name: str) -> Finding:
    """Counters of the GPU's units, from Hopper on."""
    if not hasattr(pynvml, "nvmlGpmQueryDeviceSupport"):
        return note(name, "not known to this nvidia-ml-py")
    found = _asked(lambda: pynvml.nvmlGpmQueryDeviceSupport(handle))
    if isinstance(found, Exception) or not getattr(found, "isSupportedDevice", 0):
        return note(name, "not supported by this card or driver")

    def sample() -> bool:
        taken = pynvml.nvmlGpmSampleAlloc()
        try:
            pynvml.nvmlGpmSampleGet(handle, taken)
        finally:
            pynvml.nvmlGpmSampleFree(taken)
        return True

    read = _asked(sample)
    if isinstance(read, Exception):
        fix = "run as root, or have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0"
        return warning(name, f"supported, and it cannot be read: {_words(read)}", fix)
    return ok(name, "supported, and can be read")


def cuda(look: Look) -> Iterator[Finding]:
    """CUDA as torch sees it, and the profiler."""
    try:
        import torch
    except Exception as error:
        if not isinstance(error, ModuleNotFoundError) or error.name != "torch":
            text = f"it cannot be imported ({type(error).__name__}: {_words(error)})"
            yield problem("torch", text, "pip install --force-reinstall torch")
        return
    built = getattr(torch.version, "cuda", None)
    devices = Path("/dev/nvidiactl").exists()
    if built is None:
        hip = getattr(torch.version, "hip", None)
        if devices:
            fix = "install torch with CUDA: https://pytorch.org/get-started"
            yield problem("CUDA", "there is a GPU, and torch is built without CUDA", fix)
        else:
            yield note("CUDA", f"torch is built for ROCm {hip}" if hip else "torch is built without CUDA: models run on the CPU")
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        reason = " ".join(str(said[0].message).split())[:200] if said else "no device"
        hidden = look.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            yield note("CUDA", "hidden by CUDA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        elif devices:
            fix = "update the driver, or install a torch for its version of CUDA"
            yield problem("CUDA", f"torch for CUDA {built} cannot use the GPU: {reason}", fix)
        else:
            yield note("CUDA", f"torch for CUDA {built}, no GPU here")
        return
    try:
        torch.ones(8, device="cuda").sum().item()
        count = torch.cuda.device_count()
        yield ok("CUDA", f"{built}, {counted(count, 'GPU')}, {torch.cuda.get_device_name()}")
    except Exception as error:
        yield problem("CUDA", f"a tensor cannot be made: {_words(error)}", "see nvidia-smi: the GPU may be full, in exclusive use, or lost")
        return
    yield _cupti(torch)


def _cupti(torch: Any) -> Finding:
    """Whether the profiler sees kernels."""
    restricted = False
    try:
        restricted = "RmProfilingAdminOnly: 1" in _PARAMETERS.read_text() and os.geteuid() != 0
    except OSError:
        pass
    fix = "run as root, or have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0; spans and metrics do not need it"
    try:
        kinds = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
            torch.ones(8, device="cuda").sum().item()
            torch.cuda.synchronize()
        kernels = sum(1 for event in profile.events() if "CUDA" in str(event.device_type))
    except Exception as error:
        return warning("CUPTI", f"the profiler fails: {_words(error)}", fix)
    if not kernels:
        return warning("CUPTI", f"the profiler sees no kernels{': it is for administrators only' if restricted else ''}", fix)
    return ok("CUPTI", "the profiler sees kernels" + ("; counters are for administrators only" if restricted else ""))


def _asked(ask: Any) -> Any:
    """The answer, or the exception instead of one."""
    try:
        return ask()
    except Exception as error:
        return error


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
