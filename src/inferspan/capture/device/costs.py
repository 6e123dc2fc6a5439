"""What a model costs and what its device could do, read once when the model's facts are: see ``inferspan.roofline``.

In: a model, its device and the dtype of its weights. Out: ``ModelCosts``, or ``None``. CUDA is asked for the name of a card only if the
program has initialised it.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from inferspan.roofline.gather import gather
from inferspan.roofline.model import ModelCosts
from inferspan.roofline.peaks import apple_chip, peaks_of
from inferspan.settings import Settings

__all__ = ["costs_of"]

HOST_DEVICES = ("cpu", "meta")


def _name(device: torch.device) -> str | None:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device) if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return apple_chip() if device.type == "mps" else None


def _counted(dtype: str, device: torch.device) -> str:
    """The format of products: float32 may be computed in another one on NVIDIA's cards."""
    return "tf32" if dtype == "float32" and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32 else dtype


def _threads() -> int:
    """Threads of torch's operations on the host, 0 if not known.

    Asked on another thread than the program's: torch sets the number of a thread when something asks for it there, and with it that of MKL,
    whose products then have other last bits (torch 2.13, ``torch.set_num_threads(1)`` before a model runs in a new thread).
    """
    found = [0]
    asking = threading.Thread(target=lambda: found.append(torch.get_num_threads()), name="inferspan-threads", daemon=True)
    try:
        asking.start()
    except (RuntimeError, MemoryError, OSError):  # no thread can be started
        return 0
    asking.join()
    return found[-1]


def costs_of(model: nn.Module, device: torch.device | None, dtype: str | None, settings: Settings) -> ModelCosts | None:
    """What passes of a model cost; ``None`` if that is not wanted, or nothing can be said of it.

    Args:
        model: the model, out of its wrappers.
        device: that it runs on, if it has parameters.
        dtype: of its first weights of floating point, such as ``bfloat16``.
        settings: whether it is wanted, and ceilings that the user gives.
    """
    if settings.roofline == "none" or device is None or dtype is None or issubclass(type(model), torch.jit.ScriptModule):
        return None
    kind: Any = getattr(torch, dtype, None)
    threads = _threads() if device.type == "cpu" else 0
    peaks = peaks_of(device.type, _name(device), _counted(dtype, device), dict(settings.peaks or ()), threads=threads)
    return gather(model, element=kind.itemsize, peaks=peaks, asynchronous=device.type not in HOST_DEVICES)
