"""Reductions of a step's logits for CUDA, fused: one Triton launch reads the vocabulary once, and what ends last merges its parts.

In: addresses of logits ``[B, V]``, of the chosen ids, of scratch memory and of the row to write; out: the columns of
``reductions.reduce`` in float32. ``compile_variant`` takes about a second and a C compiler and launches nothing; the ``Launch``
it returns waits for nothing and allocates nothing. Importing this module imports Triton: ``kernel_cache`` does so on a thread of its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from .kernel_cache import SCRATCH_FLOATS, TILE, Variant

__all__ = ["Launch", "compile_variant"]

BLOCK = tl.constexpr(TILE)
FIELDS = tl.constexpr(SCRATCH_FLOATS)
INF = tl.constexpr(float("inf"))

DIRECT = ((3, 1), (3, 7))
"""First and last Triton whose compiled kernels are known to be launched as ``_direct`` does."""
IN_C = frozenset({(3, 6)})
"""Triton whose launcher is known to be a Python callable around a function of C that takes all that ``_direct`` gives it."""
WITHOUT_CONSTANTS = (3, 3)
"""Triton before this leaves constants out of a compiled kernel's arguments."""


# A part's largest logits and their places are floats too: a vocabulary is smaller than 2**24. The kernel is not specialised
# on values that vary from step to step or with the batch, so that one compiled kernel serves a whole request.
@triton.jit(do_not_specialize=["chosen_stride", "splits"])
def _reduce(  # type: ignore[no-untyped-def]
    logits, stride, chosen, chosen_stride, scratch, result, tickets, vocabulary, splits,
    HAS_CHOSEN: tl.constexpr, TOP_K: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row = program // splits
    at = ((program % splits) * BLOCK).to(tl.int32) + tl.arange(0, BLOCK)
    inside = at < vocabulary
    x = tl.load(logits + row * stride + at, mask=inside, other=-INF).to(tl.float32)
    finite = (x > -INF) & (x < INF)
    low = tl.where(finite, x, -INF)
    top = tl.max(low, 0)
    # Minus infinity less itself is NaN: a part without a finite logit is measured from 0.
    below = tl.where(finite, x - tl.where(top > -INF, top, 0.0), 0.0)
    weight = tl.where(finite, tl.exp(below), 0.0)
    count = tl.sum(finite.to(tl.float32), 0)
    mean = tl.sum(below, 0) / tl.maximum(count, 1.0)
    off = tl.where(finite, below - mean, 0.0)
    out = scratch + program * (FIELDS + 2 * K)
    tl.store(out, top)
    tl.store(out + 1, tl.sum(weight, 0))
    tl.store(out + 2, tl.sum(weight * below, 0))
    tl.store(out + 3, tl.min(tl.where(finite, x, INF), 0))
    tl.store(out + 4, count)
    tl.store(out + 5, mean)
    tl.store(out + 6, tl.sum(off * off, 0))
    tl.store(out + 7, tl.sum((x != x).to(tl.float32), 0))
    tl.store(out + 8, tl.sum((x == INF).to(tl.float32), 0))
    if HAS_CHOSEN:
        token = tl.load(chosen + row * chosen_stride).to(tl.int64)
        token = tl.minimum(tl.maximum(token, 0), vocabulary - 1)
        logit = tl.load(logits + row * stride + token).to(tl.float32)
        tl.store(out + 9, tl.sum(((x > logit) & inside).to(tl.float32), 0))
    for k in tl.static_range(K):
        value = tl.max(low, 0)
        place = tl.min(tl.where((low == value) & inside, at.to(tl.float32), INF), 0)
        tl.store(out + FIELDS + k, value)
        tl.store(out + FIELDS + K + k, place)
        low = tl.where(at.to(tl.float32) == place, -INF, low)
    # All threads of this program have written when one of them takes a ticket, which publishes it and shows what others have published:
    # who takes a row's last one sees all of its parts, and leaves the tickets as it found them.
    tl.debug_barrier()
    if tl.atomic_add(tickets + row, 1, sem="acq_rel") == splits - 1:
        tl.store(tickets + row, 0)
        _merge(
            logits + row * stride, chosen + row * chosen_stride, scratch + row * splits * (FIELDS + 2 * K), result + row * (13 + 2 * TOP_K),
            vocabulary, splits, HAS_CHOSEN, TOP_K, K, SPLITS, CANDIDATES,
        )  # fmt: skip


@triton.jit
def _merge(  # type: ignore[no-untyped-def]
    logits, chosen, first, out, vocabulary, splits,
    HAS_CHOSEN: tl.constexpr, TOP_K: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    NAN: tl.constexpr = float("nan")  # not a global: Triton compares those at each launch, and NaN is no NaN's equal
    part = tl.arange(0, SPLITS)
    exists = part < splits
    at = first + part * (FIELDS + 2 * K)
    # Not from the first level of the cache, which other multiprocessors do not write to.
    top = tl.load(at, mask=exists, other=-INF, cache_modifier=".cg")
    total = tl.load(at + 1, mask=exists, other=0.0, cache_modifier=".cg")
    weighted = tl.load(at + 2, mask=exists, other=0.0, cache_modifier=".cg")
    lowest = tl.min(tl.load(at + 3, mask=exists, other=INF, cache_modifier=".cg"), 0)
    count = tl.load(at + 4, mask=exists, other=0.0, cache_modifier=".cg")
    mean = tl.load(at + 5, mask=exists, other=0.0, cache_modifier=".cg")
    spread = tl.load(at + 6, mask=exists, other=0.0, cache_modifier=".cg")
    largest = tl.max(top, 0)
    defined = largest > -INF
    base = tl.where(defined, largest, 0.0)
    down = tl.where(top > -INF, top - base, 0.0)
    scale = tl.where(top > -INF, tl.exp(down), 0.0)
    z = tl.sum(total * scale, 0)
    n = tl.sum(count, 0)
    # A part's mean was taken from its own largest logit. Spreads are added by the parallel form of Chan, Golub and LeVeque (1979).
    mean += down
    whole = tl.sum(count * mean, 0) / tl.maximum(n, 1.0)
    inner = tl.sum(spread + count * (mean - whole) * (mean - whole), 0)
    width = tl.maximum(vocabulary, K).to(tl.float32)
    missing = width - n
    shift = whole * (n / width)
    undefined = tl.where(defined, 0.0, NAN)
    tl.store(out, largest)
    tl.store(out + 2, 1.0 / z + undefined)
    tl.store(out + 3, tl.sum((weighted + down * total) * scale, 0) / z + undefined)
    tl.store(out + 4, tl.where(defined, lowest - base, 0.0))
    tl.store(out + 5, shift)
    tl.store(out + 6, (inner + n * (whole - shift) * (whole - shift) + missing * shift * shift) / width)
    tl.store(out + 7, missing)
    tl.store(out + 8, tl.sum(tl.load(at + 7, mask=exists, other=0.0, cache_modifier=".cg"), 0))
    tl.store(out + 9, tl.sum(tl.load(at + 8, mask=exists, other=0.0, cache_modifier=".cg"), 0))
    if HAS_CHOSEN:
        token = tl.load(chosen).to(tl.int64)
        tl.store(out + 10, token.to(tl.float32))
        token = tl.minimum(tl.maximum(token, 0), vocabulary - 1)
        tl.store(out + 11, tl.load(logits + token).to(tl.float32))
        tl.store(out + 12, tl.sum(tl.load(at + 9, mask=exists, other=0.0, cache_modifier=".cg"), 0))
    else:
        tl.store(out + 10 + tl.arange(0, 4), tl.full((4,), NAN, tl.float32), mask=tl.arange(0, 4) < 3)
    candidate = tl.arange(0, CANDIDATES)
    exists = candidate < splits * K
    at = first + (candidate // K) * (FIELDS + 2 * K) + FIELDS + candidate % K
    values = tl.load(at, mask=exists, other=-INF, cache_modifier=".cg")
    found = tl.load(at + K, mask=exists, other=INF, cache_modifier=".cg")
    for k in tl.static_range(K):
        value = tl.max(values, 0)
        place = tl.min(tl.where(values == value, found, INF), 0)
        if k == 1:
            tl.store(out + 1, value)
        if k < TOP_K:
            tl.store(out + 13 + k, place)
            tl.store(out + 13 + TOP_K + k, tl.where(value > -INF, tl.exp(value - base) / z, 0.0) + undefined)
        values = tl.where(found == place, -INF, values)


class _Pointer:
    """Memory as Triton asks about it: a type and an address."""

    def __init__(self, dtype: torch.dtype, address: int) -> None:
        self.dtype = dtype
        self._address = address

    def data_ptr(self) -> int:
        """The address, of which Triton wants to know whether 16 divides it."""
        return self._address


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", triton.__version__)[:2])


class Launch:
    """The kernel, compiled and loaded for one variant; belongs to no thread, stream or request.

    Args:
        variant: what it is compiled for; the current device is the variant's.
    """

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self._splits = splits = variant.tiles
        k = max(2, variant.top_k)
        self._constants = {
            "HAS_CHOSEN": variant.chosen is not None, "TOP_K": variant.top_k, "K": k,
            "SPLITS": triton.next_power_of_2(splits), "CANDIDATES": triton.next_power_of_2(splits * k),
        }  # fmt: skip
        self._types = (variant.logits, variant.chosen or variant.logits)
        # Ids and result rows lie anywhere. A kernel compiled for an odd address is right for every one, if Triton does not choose again.
        direct = DIRECT[0] <= _version() <= DIRECT[1]
        for ids, row in ((8, 4),) if direct else itertools.product((0, 8), (0, 4)):
            compiled = self._compile(ids, row)
        self._call = self._direct(compiled) if direct else self._public

    def _compile(self, ids: int, row: int) -> Any:
        variant = self.variant
        arguments = self._arguments(16 if variant.aligned else 2, variant.stride, 16 + ids, 2, 16, 16 + row, 16)
        return _reduce.warmup(*arguments, grid=(1,), num_warps=8, **self._constants)

    def _arguments(
        self, logits: int, stride: int, chosen: int, chosen_stride: int, scratch: int, row: int, tickets: int
    ) -> tuple[Any, ...]:
        types = self._types
        return (
            _Pointer(types[0], logits), stride, _Pointer(types[1], chosen), chosen_stride, _Pointer(torch.float32, scratch),
            _Pointer(torch.float32, row), _Pointer(torch.int32, tickets), self.variant.vocabulary, self._splits,
        )  # fmt: skip

    def _public(self, batch: int, stream: int, logits: int, stride: int, chosen: int, chosen_stride: int, scratch: int, row: int) -> None:
        """Triton's own way to launch, some 15 us: it looks its kernels up by the arguments, and takes the current stream."""
        tickets = scratch + batch * self.variant.scratch_bytes
        arguments = self._arguments(logits, stride, chosen, chosen_stride, scratch, row, tickets)
        _reduce[(batch * self._splits,)](*arguments, num_warps=8, **self._constants)

    def _direct(self, compiled: Any) -> Callable[..., None]:
        """The C launcher of the compiled kernel, called with addresses. Wrong arguments are a TypeError there, and launch nothing."""
        # The attribute loads the kernel onto the device.
        run = compiled.run
        # No hooks: those that profilers of Triton set are told of kernels by name, and ours are not the user's.
        about: tuple[Any, ...] = (compiled.function, compiled.packed_metadata, None, None, None)
        if _version() in IN_C and not (run.global_scratch_size or run.profile_scratch_size):
            # Code around the launcher allocates memory for some kernels.
            about = (compiled.function, run.launch_cooperative_grid, run.launch_pdl, None, None, *about[1:])
            run = run.launch
        after = (self.variant.vocabulary, self._splits, *(self._constants.values() if _version() >= WITHOUT_CONSTANTS else ()))
        splits, scratch_bytes = self._splits, self.variant.scratch_bytes

        def call(batch: int, stream: int, logits: int, stride: int, chosen: int, chosen_stride: int, scratch: int, row: int) -> None:
            tickets = scratch + batch * scratch_bytes
            run(batch * splits, 1, 1, stream, *about, logits, stride, chosen, chosen_stride, scratch, row, tickets, *after)

        return call

    @property
    def call(self) -> Callable[..., None]:
        """Launch the kernel: ``(batch, stream, logits, stride, chosen, chosen_stride, scratch, row)``.

        All numbers: addresses in bytes, strides in elements, the raw handle of the current stream. ``chosen`` is not read if the
        variant has none. ``scratch`` holds ``batch * (variant.scratch + 1)`` floats that nothing else uses on this stream; the last
        ``batch`` of them are 0 before the first launch, and after each.
        """
        return self._call


def compile_variant(variant: Variant) -> Callable[..., None]:
    """Compile and load the kernel for ``variant`` on the current device; launches nothing, and may raise anything."""
    return Launch(variant).call
