"""The fused kernels of this process: each compiled once, on a thread of its own, while torch operations do their work.

In: the variants that logits on CUDA devices need. Out: a function that launches the kernel once it is compiled and loaded, else ``None``.
After a failure (no Triton, no C compiler, no room for its cache) torch operations stay in use; it is logged once and counted.
The thread launches nothing, waits for no stream, and neither disturbs nor is disturbed by a graph that another thread captures.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from inferspan.capture.device.driver import leave_captures_alone
from inferspan.guard import pass_on, report

__all__ = ["FUSED", "SCRATCH_FLOATS", "FusedLogits", "Variant"]

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})
ID_TYPES = frozenset({None, torch.int64, torch.int32})
MOST_LIKELY = 32
"""Largest ``top_k``: each of them is one more pass over a tile that sits in registers."""
VOCABULARY = 1 << 24
"""Ids below it are whole numbers in a float32."""
TILE = 4096
"""Logits of one tile, all in registers of one program."""
SCRATCH_FLOATS = 16
"""Floats that a tile leaves besides its largest logits; ten are used."""
LARGEST_STRIDE = (1 << 31) - 1
EXIT_SECONDS = 10.0
PLACE = "fused logit statistics"


class Variant(NamedTuple):
    """The properties that one kernel is compiled for."""

    device: int
    logits: torch.dtype
    chosen: torch.dtype | None
    top_k: int
    vocabulary: int
    stride: int
    """0 for a single row, else 16 for all strides divisible by 16, 1 for a stride of one, 2 for all others."""
    aligned: bool
    """Whether 16 divides the address of the logits."""

    @property
    def tiles(self) -> int:
        """Tiles that a row is divided into."""
        return -(-self.vocabulary // TILE)

    @property
    def scratch(self) -> int:
        """Floats of scratch memory a row, its ticket apart; 16 bytes divide them."""
        return -(-self.tiles * (SCRATCH_FLOATS + 2 * max(2, self.top_k)) // 4) * 4

    @property
    def scratch_bytes(self) -> int:
        """The same in bytes."""
        return 4 * self.scratch


KernelCall = Callable[..., None]
"""``(batch, stream, logits, stride, chosen, chosen_stride, scratch, row)``, all numbers; see ``kernel.Launch.call``."""


def _compiler() -> Callable[[Variant], KernelCall]:
    compile_variant: Callable[[Variant], KernelCall] = importlib.import_module(f"{__package__}.kernel").compile_variant
    return compile_variant


class FusedLogits:
    """Compiled kernels by variant, and the thread that makes them.

    Args:
        device_type: devices that kernels are there for.
        compiler: returns what compiles one variant; called on the thread, as everything that may be slow.
        prepare: called first on the thread.
    """

    def __init__(
        self,
        *,
        device_type: str = "cuda",
        compiler: Callable[[], Callable[[Variant], KernelCall]] = _compiler,
        prepare: Callable[[], Any] = leave_captures_alone,
    ) -> None:
        self.device_type = device_type
        self._compiler = compiler
        self._prepare = prepare
        self._ready: dict[Variant, KernelCall] = {}
        self._asked: set[Variant] = set()
        self._waiting: list[Variant] = []
        self._thread: threading.Thread | None = None
        self._leaving = False
        self._installed: bool | None = None
        self._registered = False
        self._lock = threading.Lock()
        self.failed = False
        """Whether torch operations are used from now on."""

    @property
    def available(self) -> bool:
        """Whether there may be kernels at all: an NVIDIA build of torch, Triton installed, and nothing has failed so far."""
        if self._installed is None:
            self._installed = self.device_type != "cuda" or _has_triton()
        return self._installed and not self.failed

    def choose(self, logits: torch.Tensor, chosen: torch.Tensor | None, *, top_k: int) -> Variant | None:
        """The variant for such tensors, or ``None`` if torch operations are to be used.

        Args:
            logits: strided ``[B, V]``, not empty.
            chosen: ``[B]`` or None.
            top_k: how many of the most likely tokens are wanted.
        """
        device, ids = logits.device, None if chosen is None else chosen.dtype
        if device.type != self.device_type or logits.dtype not in DTYPES or ids not in ID_TYPES or not self.available:
            return None
        batch, vocabulary = logits.shape
        if top_k > MOST_LIKELY or vocabulary >= VOCABULARY or logits.stride(1) != 1 or logits.is_neg() or batch * vocabulary >= 1 << 40:
            return None
        if chosen is not None and (chosen.device != device or chosen.shape != (batch,) or chosen.stride(0) > LARGEST_STRIDE):
            return None
        stride = logits.stride(0) if batch > 1 else 0
        if stride > LARGEST_STRIDE:
            return None
        kind = stride if stride < 2 else 2 if stride % 16 else 16
        return Variant(device.index or 0, logits.dtype, ids, top_k, vocabulary, kind, logits.data_ptr() % 16 == 0)

    def get(self, variant: Variant) -> KernelCall | None:
        """The kernels for ``variant`` if they are ready; else they will be compiled. Costs a look into a dictionary."""
        call = self._ready.get(variant)
        if call is None and variant not in self._asked and not self.failed:
            self._ask(variant)
        return call

    def fail(self, error: Exception) -> None:
        """Use torch operations from now on, because of ``error``."""
        with self._lock:
            first, self.failed = not self.failed, True
            self._ready.clear()
            self._waiting.clear()
        if first:
            # Neither Triton nor a compiler knows the program's data, so their words may be logged.
            words = (str(error).strip().splitlines() or [""])[0][:200]
            report(PLACE, error, reason=f"{words}; torch operations are used, which cost more")

    def join(self, timeout: float) -> None:
        """Wait until nothing is being compiled."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def renew(self) -> None:
        """Begin anew in a forked child, which has neither the thread nor a device."""
        self._lock = threading.Lock()
        self._thread, self._leaving = None, False
        self._asked, self._waiting = set(), []
        self._ready = {}

    def _ask(self, variant: Variant) -> None:
        with self._lock:
            if variant in self._asked or self._leaving:
                return
            self._asked.add(variant)
            self._waiting.append(variant)
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._work, name="inferspan-logits-kernel", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                # No thread can be had, for instance because the interpreter is ending.
                self._thread, self._leaving = None, True
                return
            if not self._registered:
                # A daemon thread that still runs C++ when the interpreter is taken down can abort the process.
                self._registered = True
                atexit.register(self._leave)

    def _leave(self) -> None:
        with self._lock:
            self._leaving = True
            self._waiting.clear()
        self.join(EXIT_SECONDS)

    def _work(self) -> None:
        try:
            self._prepare()
            compile_variant = self._compiler()
            while True:
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return
                    variant = self._waiting.pop(0)
                call = self._compile(compile_variant, variant)
                with self._lock:
                    if not self.failed:
                        self._ready[variant] = call
        except Exception as error:
            pass_on(error)
            self.fail(error)
            with self._lock:
                self._thread = None

    def _compile(self, compile_variant: Callable[[Variant], KernelCall], variant: Variant) -> KernelCall:
        if self.device_type != "cuda":
            return compile_variant(variant)
        # Of this thread only. The logits are there already, so no context comes into being.
        with torch.cuda.device(variant.device):
            return compile_variant(variant)


def _has_triton() -> bool:
    if torch.version.hip is not None:
        return False
    try:
        return importlib.util.find_spec("triton") is not None
    except (ImportError, ValueError):
        return False


FUSED = FusedLogits()
"""The kernels of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=FUSED.renew)
