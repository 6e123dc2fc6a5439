"""What torch.compile has done to a model, seen without touching it: which forward passes are compiled, and how many graphs there are."""

from __future__ import annotations

import sys

from torch import nn

__all__ = ["compiled_graphs", "is_compiled", "is_optimized"]


def is_compiled(module: nn.Module) -> bool:
    """Whether the module's own forward runs inside a compiled region, where hooks of ours must not be."""
    forward = module.__dict__.get("forward")
    return module.__dict__.get("_compiled_call_impl") is not None or getattr(forward, "_torchdynamo_orig_callable", None) is not None


def is_optimized(module: nn.Module) -> bool:
    """Whether the module is what ``torch.compile(model)`` returns: it may be hooked itself, what is inside it may not."""
    return type(module).__name__ == "OptimizedModule"


def compiled_graphs() -> int:
    """Graphs that torch.compile has made in this process so far; 0 where it was never used."""
    module = sys.modules.get("torch._dynamo.utils")
    counters = getattr(module, "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters is not None else 0
