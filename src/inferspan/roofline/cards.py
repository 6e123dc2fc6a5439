"""Ceilings of cards as their makers state them: dense products, without sparsity, at the highest clock.

Each row names its source. ``float32`` and ``float64`` are those of the fastest units that compute in this format: on AMD's cards the matrix
units. ``tf32`` counts where torch may use that format for float32. A ceiling that the maker does not state is not in the row. The setting
``peaks`` replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["CARDS", "Card"]

T = 1e12
_NVIDIA = "https://www.nvidia.com/en-us/data-center"
_IMAGES = "https://images.nvidia.com/aem-dam/Solutions/geforce"
_AMD = "https://www.amd.com/en/products/accelerators/instinct"
_APPLE = "https://www.apple.com/newsroom"


class Card(NamedTuple):
    """One row: words that are in the name which the driver gives, FLOP/s by dtype, bytes a second, and where that is stated."""

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    source: str


def _flops(half: float | None = None, **others: float) -> dict[str, float]:
    """TFLOP/s to FLOP/s; ``half`` is that of float16 and bfloat16."""
    found = {} if half is None else {"float16": half, "bfloat16": half}
    return {dtype: float(round(value * T)) for dtype, value in {**found, **others}.items()}


def _eight(value: float, int8: float | None = None, *, kind: str = "") -> dict[str, float]:
    """Products of 8 bits, floating point with sums in float32, and integers; ``kind`` is the end of the names of AMD's formats."""
    e4m3 = f"float8_e4m3{kind or 'fn'}"
    return {"int8": value if int8 is None else int8, e4m3: value, f"float8_e5m2{kind}": value}


_ADA = _eight(330.3, int8=660.6)
_FNUZ = _eight(2614.9, kind="fnuz")

CARDS: tuple[Card, ...] = (
    Card("B200", _flops(2250, tf32=1125, **_eight(4500)), 8.0 * T, f"{_NVIDIA}/hgx/"),
    Card("H200", _flops(989.4, tf32=494.7, float32=66.9, float64=66.9, **_eight(1978.9)), 4.8 * T, f"{_NVIDIA}/h200/"),
    Card("H200 NVL", _flops(835.5, tf32=417.5, float32=60, float64=60, **_eight(1670.5)), 4.8 * T, f"{_NVIDIA}/h200/"),
    Card("H100", _flops(989.4, tf32=494.7, float32=66.9, float64=66.9, **_eight(1978.9)), 3.35 * T, f"{_NVIDIA}/h100/"),
    Card("H100 PCIe", _flops(756, tf32=378, float32=51, float64=51, **_eight(1513)), 2.0 * T, f"{_NVIDIA}/h100/"),
    Card("H100 NVL", _flops(835.5, tf32=417.5, float32=60, float64=60, **_eight(1670.5)), 3.9 * T, f"{_NVIDIA}/h100/"),
    Card("A100 SXM4 80GB", _flops(312, tf32=156, float32=19.5, float64=19.5, int8=624), 2.039e12, f"{_NVIDIA}/a100/"),
    Card("A100 80GB PCIe", _flops(312, tf32=156, float32=19.5, float64=19.5, int8=624), 1.935e12, f"{_NVIDIA}/a100/"),
    Card("A100 SXM4 40GB", _flops(312, tf32=156, float32=19.5, float64=19.5, int8=624), 1.555e12, f"{_NVIDIA}/a100/"),
    Card("A100 PCIE 40GB", _flops(312, tf32=156, float32=19.5, float64=19.5, int8=624), 1.555e12, f"{_NVIDIA}/a100/"),
    Card("A10", _flops(125, tf32=62.5, float32=31.2, int8=250), 0.6 * T, f"{_NVIDIA}/products/a10-gpu/"),
    Card("L4", _flops(121, tf32=60, float32=30.3, **_eight(242.5)), 0.3 * T, f"{_NVIDIA}/l4/"),
    Card("L40S", _flops(362.05, tf32=183, float32=91.6, **_eight(733)), 0.864 * T, f"{_NVIDIA}/l40s/"),
    Card("V100 SXM2", _flops(None, float16=125, float32=15.7, float64=7.8), 0.9 * T, f"{_NVIDIA}/v100/"),
    Card("V100 PCIE", _flops(None, float16=112, float32=14, float64=7), 0.9 * T, f"{_NVIDIA}/v100/"),
    Card("T4", _flops(None, float16=65, float32=8.1, int8=130), 0.32 * T, f"{_NVIDIA}/tesla-t4/"),
    Card("RTX 4090", _flops(165.2, tf32=82.6, float32=82.6, **_ADA), 1.008 * T, f"{_IMAGES}/ada/nvidia-ada-gpu-architecture.pdf"),
    Card("RTX 3090", _flops(71, tf32=35.6, float32=35.6, int8=284), 0.936 * T, "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"),
    Card("MI300X", _flops(1307.4, tf32=653.7, float32=163.4, float64=163.4, **_FNUZ), 5.3 * T, f"{_AMD}/mi300/mi300x.html"),
    Card("MI325X", _flops(1307.4, tf32=653.7, float32=163.4, float64=163.4, **_FNUZ), 6.0 * T, f"{_AMD}/mi300/mi325x.html"),
    # torch sees one of the two dies of a module as a device: half of what the maker states for both.
    Card("MI250X", _flops(191.5, float32=47.85, float64=47.85, int8=191.5), 1.638 * T, f"{_AMD}/mi200/mi250x.html"),
    # Apple states the bandwidth of its chips alone.
    Card("Apple M1 Max", {}, 0.4 * T, f"{_APPLE}/2021/10/introducing-m1-pro-and-m1-max-the-most-powerful-chips-apple-has-ever-built/"),
    Card("Apple M1 Ultra", {}, 0.8 * T, f"{_APPLE}/2022/03/apple-unveils-m1-ultra-the-worlds-most-powerful-chip-for-a-personal-computer/"),
    Card("Apple M2 Ultra", {}, 0.8 * T, f"{_APPLE}/2023/06/apple-introduces-m2-ultra/"),
)  # fmt: skip
"""Cards by the words of their names."""
