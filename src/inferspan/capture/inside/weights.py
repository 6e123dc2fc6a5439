"""NaN, Inf and values near the limit of their dtype in the parameters and buffers of a model, when the program asks."""

from __future__ import annotations

import fnmatch
from collections import Counter
from typing import Any

from torch import Tensor, nn

from inferspan.capture.values import host
from inferspan.capture.values.counts import Counted, DeviceCounts
from inferspan.setting_checks import warn_once

from .results import BadWeight, WeightsVerdict
from .watch import tensors_in

__all__ = ["check_weights"]


def check_weights(model: nn.Module | None, pattern: str) -> WeightsVerdict:
    """Look at the parameters and buffers of which a path matches, each once, under its first such path; waits for the device.

    Args:
        model: whose; ``None`` if it does not live any more.
        pattern: a glob; ``model.layers.0`` means everything in that module.
    """
    left_out: Counter[str] = Counter()
    rows, found = DeviceCounts(), list[tuple[str, Tensor, tuple[int, int, int] | Counted]]()
    seen: set[int] = set()
    # Tied ones have several paths, of which only the second may match.
    every: Any = {"remove_duplicate": False}
    named: Any = () if model is None else (*nn.Module.named_parameters(model, **every), *nn.Module.named_buffers(model, **every))
    for name, tensor in named:
        if id(tensor) not in seen and (fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")):
            seen.add(id(tensor))
            for part in tensors_in(tensor.detach(), left_out):
                if host.is_freed(part):
                    left_out["without memory"] += 1
                elif part.numel():
                    found.append((name, part, host.counts(part) if part.is_cpu else rows.add(part)))
    if model is not None and not (found or left_out):
        warn_once("handle.check_weights(%r): no parameter or buffer matches, so nothing was looked at", pattern)
    numbers = rows.read()
    bad, elements, high = [], 0, 0
    for name, part, place in found:
        nan, inf, near = place if isinstance(place, tuple) and len(place) == 3 else numbers(place)
        elements, high = elements + part.numel(), high + near
        if nan or inf:
            bad.append(BadWeight(name, tuple(part.shape), str(part.dtype).removeprefix("torch."), nan, inf, part.numel()))
    return WeightsVerdict(len(found), elements, tuple(bad), high, {key: count for key, count in left_out.items() if count})
