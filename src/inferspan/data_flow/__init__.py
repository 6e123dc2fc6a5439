"""How tensors flow between the modules of a model in a recorded pass: edges, what they mean, and their picture. Needs no torch."""

from __future__ import annotations

from .flow import DataFlow, FlowTensor

__all__ = ["DataFlow", "FlowTensor"]
