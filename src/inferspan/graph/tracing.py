"""``trace``: from a model and a sample to a graph, by the first pipeline that works."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .errors import TraceError
from .exporting import plain
from .graph import Graph
from .inputs.signature import inputs_of
from .pipelines import basic, layer, run_model, same
from .programs import program_of
from .selection import Selection, select

PIPELINES = ("sequential", "layer", "basic")
_log = logging.getLogger("inferspan.graph")


def trace_selected(model: nn.Module, inputs: dict[str, Any], selection: Selection, free: bool = True) -> Graph:
    """Trace with leaves that are already chosen: by ``torch.export``, else by ``torch.fx``.

    Args:
        model: with or without weights.
        inputs: keyword arguments of forward.
        selection: targets and ignored modules.
        free: whether batch and length may differ on replay; without, tracing is faster.

    Raises:
        TraceError: neither can trace it; with the failure of ``torch.export``.
    """
    return Graph(model, program_of(model, inputs, selection, free), selection, inputs)


def _chain(model: nn.Module, inputs: dict[str, Any], selection: Selection, why: str) -> Graph:
    graph = Graph(model, layer(model, inputs, selection), selection, inputs, "layer", why)
    with torch.no_grad(), torch.random.fork_rng():
        state = torch.get_rng_state()
        expected = run_model(model, inputs)
        torch.set_rng_state(state)
        if not same(graph.run(**inputs), expected):
            raise TraceError("the targets as a chain give another output than the model", "other")
    return graph


def trace(
    model: nn.Module,
    sample_inputs: Mapping[str, Any] | tuple[Any, ...] | torch.Tensor,
    sequential_targets: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] = (),
    pipeline: str = "sequential",
) -> Graph:
    """Trace the forward pass of a model on one sample, and cut it at the targets.

    ``sequential`` computes nothing and leaves the model as it was; ``layer`` and ``basic`` need its weights, and ``layer`` runs it on the
    sample.

    Args:
        model: with or without weights (``meta``).
        sample_inputs: keyword arguments of forward, or a tuple of positional ones.
        sequential_targets: class names, paths or ``re:`` patterns; None takes the model's own blocks.
        ignore: the same, of modules that are called whole and not traced.
        pipeline: ``sequential``: traced and cut at the targets. ``layer``: no trace, the targets as a chain, if they are a plain one.
            ``basic``: the model as one subgraph. ``auto``: the first of these that works; ``graph.pipeline`` says which, and a line in the
            log why.

    Raises:
        TraceError: the pipeline does not work for this model, with the class of the failure and its place in the model's source.
        ValueError: a target matches nothing, or the pipeline is none of these.
        TypeError: the sample does not fit forward's signature, or an entry of a list is no string.
    """
    if pipeline not in (*PIPELINES, "auto"):
        raise ValueError(f"pipeline is one of {', '.join(PIPELINES)} or auto, not {pipeline!r}")
    model = plain(model)
    inputs = inputs_of(model, sample_inputs)
    selection = select(model, sequential_targets, ignore)
    reasons: list[str] = []
    for name in PIPELINES if pipeline == "auto" else (pipeline,):
        try:
            made = _by(name, model, inputs, selection, "; ".join(reasons))
        except TraceError as error:
            if pipeline != "auto" or name == PIPELINES[-1]:
                raise
            text = " ".join(str(error).split())
            reasons.append(f"{name}: {text[:200]}")
            continue
        if pipeline == "auto":
            _log.info("%s: pipeline %s%s", type(model).__name__, name, f", because of {'; '.join(reasons)}" if reasons else "")
        return made
    raise AssertionError("no pipeline was tried")


def _by(name: str, model: nn.Module, inputs: dict[str, Any], selection: Selection, why: str) -> Graph:
    if name == "sequential":
        return trace_selected(model, inputs, selection)
    if name == "layer":
        return _chain(model, inputs, selection, why)
    return Graph(model, basic(model, inputs), selection, inputs, "basic", why)


__all__ = ["PIPELINES", "trace", "trace_selected"]
