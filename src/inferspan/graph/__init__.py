"""Symbolic graphs of models: traced without computing, cut at targets, replayed part by part."""

from __future__ import annotations

from .attempt import Attempt, attempt_trace
from .comparing import Choice, Comparison, IgnoreCost
from .errors import REASONS, Place, TraceError
from .graph import Graph
from .inputs.sizes import Size
from .models.samples import sample_inputs
from .nodes import Edge, Node
from .partition import Subgraph, Value
from .pictures.picture import Picture
from .tracing import trace

__all__ = [
    "REASONS",
    "Attempt",
    "Choice",
    "Comparison",
    "Edge",
    "Graph",
    "IgnoreCost",
    "Node",
    "Picture",
    "Place",
    "Size",
    "Subgraph",
    "TraceError",
    "Value",
    "attempt_trace",
    "sample_inputs",
    "trace",
]
