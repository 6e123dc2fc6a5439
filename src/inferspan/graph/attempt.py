"""``attempt_trace``: whether a model can be traced, and if not, what breaks, where, and what to ignore."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from inferspan.text.numbers import counted

from .comparing import ADVICE, IgnoreCost, ignore_costs
from .errors import REASONS, Place, TraceError
from .exporting import plain
from .graph import Graph
from .inputs.signature import inputs_of
from .models.loading import class_of, configuration, make
from .models.samples import modalities
from .models.samples import sample_inputs as make_inputs
from .searching import Proposal, search
from .selection import Selection, inside, names_of, select
from .tracing import trace_selected

_PAGE = "docs/tracing.md"


@dataclass(frozen=True)
class Attempt:
    """The result of ``attempt_trace``.

    Attributes:
        ok: whether the model was traced.
        model: as it was given: id, folder or class.
        model_class: name of its class.
        inputs: names of the sample inputs, each with dtype and shape, or its value if it is no tensor.
        targets: names of targets, each with the number of modules that it matches.
        targets_from: who chose them: ``given``, ``_no_split_modules`` or ``numbered layers``.
        ignored: ignored entries, each with the outermost modules that it matches.
        graph: the graph, None after a failure.
        reason: class of the failure, a key of ``inferspan.graph.REASONS``; None if there was none.
        message: what the tracer said.
        where: place of the failure in the model's source.
        proposed_ignore: the shortest ignore list that was found to work, None if there is none or none was needed.
        needless: given entries that the proposal does without.
        note: why there is no proposal.
        tries: traces that the search took.
        costs: what ignoring each module of the proposal costs.
    """

    ok: bool
    model: str
    model_class: str
    inputs: Mapping[str, str]
    targets: Mapping[str, int]
    targets_from: str
    ignored: Mapping[str, tuple[str, ...]]
    graph: Graph | None = field(default=None, repr=False)
    reason: str | None = None
    message: str = ""
    where: Place | None = None
    proposed_ignore: tuple[str, ...] | None = None
    needless: tuple[str, ...] = ()
    note: str = ""
    tries: int = 0
    costs: tuple[IgnoreCost, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """The result in lines; ``verbose`` adds one for each subgraph."""
        named = [f"{name} ({counted(count, 'module')})" for name, count in self.targets.items()]
        chosen = "" if self.targets_from == "given" else f", from the model's {self.targets_from}"
        lines = [
            f"model: {self.model}",
            f"class: {self.model_class}",
            f"sample inputs: {', '.join(f'{name} {value}' for name, value in self.inputs.items())}",
            f"targets: {', '.join(named) or 'none'}{chosen}",
            f"ignored: {'; '.join(f'{entry} -> {_few(paths)}' for entry, paths in self.ignored.items()) or 'nothing'}",
        ]
        if self.graph is not None:
            lines.append(self.summary())
            if verbose:
                lines += [_line(subgraph) for subgraph in self.graph.subgraphs]
                costs = self.graph.ignore_costs()
                lines += [f"  ignored: {cost}" for cost in costs]
                lines += [f"  {ADVICE}"] if costs else []
        else:
            lines += self._failure()
        return "\n".join(lines)

    def summary(self) -> str:
        """One line: the number of subgraphs, or what breaks."""
        if self.graph is None:
            return f"cannot trace {self.model_class}: {REASONS[self.reason or 'other']}"
        calls: dict[str, int] = {}
        for subgraph in self.graph.subgraphs:
            if subgraph.target is not None:
                name = type(self.graph.model.get_submodule(subgraph.target)).__name__
                calls[name] = calls.get(name, 0) + 1
        called = ", ".join(f"{count} {name}" for name, count in calls.items()) or "no targets"
        away = self.graph.selection.ignored_paths
        ignored = f", ignored: {_few(away)}" if away else ""
        number = len(self.graph.subgraphs)
        return f"traced {self.model_class} into {counted(number, 'subgraph')} ({called}{ignored})"

    def _failure(self) -> list[str]:
        lines = [self.summary(), f"  the tracer says: {' '.join(self.message.split())}"]
        if self.where is not None:
            if self.where.file:
                function = f" in {self.where.function}" if self.where.function else ""
                lines.append(f"  at {self.where.file}:{self.where.line}{function}")
            if self.where.source:
                lines.append(f"    {self.where.source}")
            lines.append(f"  modules: {' > '.join(path or self.model_class for path in self.where.modules)}")
        if self.proposed_ignore is not None:
            lines.append(f"  it can be traced with ignore={list(self.proposed_ignore)!r} ({self.tries} traces tried)")
            lines.append(f"    {' '.join(f'--ignore {entry!r}' for entry in self.proposed_ignore)}")
            if self.needless:
                lines.append(f"    not needed: {', '.join(self.needless)}")
            lines += [f"    {cost}" for cost in self.costs]
            lines.append(f"  {ADVICE}")
        else:
            lines.append(f"  {self.note}")
            lines.append("  pipeline='auto' falls back to the targets as a chain (layer), then to the whole model (basic)")
            lines.append("  both need weights")
        lines.append(f"  see {_PAGE}#{(self.reason or 'other').replace('_', '-')}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values, with the graph's."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("graph", "where")}
        where = asdict(self.where) if self.where else None
        graph = self.graph.as_dict() if self.graph is not None else None
        return {**values, "costs": [asdict(cost) for cost in self.costs], "where": where, "summary": self.summary(), "graph": graph}

    def to_json(self, indent: int | None = None) -> str:
        """``as_dict`` as JSON."""
        return json.dumps(self.as_dict(), indent=indent, default=str)


def _few(paths: Iterable[str]) -> str:
    listed = list(paths)
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "") if listed else "no module"


def _line(subgraph: Any) -> str:
    def values(entries: Any) -> str:
        return ", ".join(f"{entry.name} ({'?' if entry.bytes is None else format(entry.bytes, ',')} B)" for entry in entries) or "nothing"

    return (
        f"  {subgraph.index}: {subgraph.target or 'rest'}; {len(subgraph.operators)} operators: {_few(subgraph.operators)}; "
        f"{subgraph.parameter_bytes:,} B of weights; takes {values(subgraph.consumed)}; gives {values(subgraph.produced)}"
    )


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return f"({', '.join(_shape(leaf) for leaf in leaves)})" if leaves else repr(value)[:60]


def _modality(model: nn.Module, multimodal_data: bool) -> str:
    """Which sample a model gets: text where it takes any, unless other data is asked for."""
    known = modalities(model)
    if not known:
        raise ValueError(f"{type(model).__name__} takes neither text nor image nor audio: give sample_inputs")
    others = [name for name in known if name != "text"]
    if multimodal_data and not others:
        raise ValueError(f"{type(model).__name__} takes text only")
    return others[0] if multimodal_data else known[0]


def model_of(model_id: nn.Module | str, model_class: type | str | None) -> nn.Module:
    """The model itself, or one made from a configuration, without weights.

    Raises:
        ValueError: there is no such class.
        OSError: there is no such configuration.
    """
    if isinstance(model_id, nn.Module):
        if model_class is not None:
            raise ValueError("model_class belongs to an id or a folder, and a model was given")
        return plain(model_id)
    config = configuration(str(model_id))
    return make(config, class_of(config, model_class))


def attempt_trace(
    model_id: nn.Module | str,
    model_class: type | str | None = None,
    multimodal_data: bool = False,
    sequential_targets: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] = (),
    sample_inputs: Mapping[str, Any] | tuple[Any, ...] | None = None,
    *,
    modality: str | None = None,
    verbose: bool = False,
    show: bool = True,
) -> Attempt:
    """Try to trace a model, and print the number of subgraphs or what breaks, where, and a tried ignore list that makes it work.

    Args:
        model_id: a hub id, a folder or a model. Of ids and folders the configuration is read, not the weights.
        model_class: the class to make of the configuration, or ``package.module:Class``; default what the configuration names. A definition
            of your own can be tried in this way.
        multimodal_data: sample inputs with an image or sound, not text alone.
        sequential_targets: class names, paths or ``re:`` patterns; None takes the model's own blocks.
        ignore: the same, of modules that are called whole and not traced.
        sample_inputs: inputs of your own, as for ``trace``.
        modality: ``text``, ``image`` or ``audio``, in place of ``multimodal_data``.
        verbose: print a line for each subgraph.
        show: print; without, ``str(result)`` has the text.

    Raises:
        ValueError: a target that matches nothing, an unknown class or modality, or a model for which no sample can be made.
        TypeError: sample inputs that do not fit the signature of forward.
        OSError: there is no configuration of that name.
    """
    model = model_of(model_id, model_class)
    if sample_inputs is None:
        source = model if isinstance(model_id, nn.Module) else model_id
        sample_inputs = make_inputs(source, modality or _modality(model, multimodal_data), model_class=model_class)
    inputs = inputs_of(model, sample_inputs)
    given = None if sequential_targets is None else names_of(sequential_targets)
    away = names_of(ignore)
    selection = select(model, given, away)
    name = str(model_id) if not isinstance(model_id, nn.Module) else type(model).__name__
    common: dict[str, Any] = dict(
        model=name,
        model_class=type(model).__name__,
        inputs={key: _shape(value) for key, value in inputs.items()},
        targets=_counts(model, selection),
        targets_from=selection.source,
        ignored={entry: _outer(paths) for entry, paths in selection.ignored.items()},
    )
    result = _attempt(model, inputs, selection, given, away, common)
    if show:
        print(result.text(verbose))
    return result


def _attempt(
    model: nn.Module,
    inputs: dict[str, Any],
    selection: Selection,
    given: tuple[str, ...] | None,
    away: tuple[str, ...],
    common: dict[str, Any],
) -> Attempt:
    try:
        return Attempt(ok=True, graph=trace_selected(model, inputs, selection), **common)
    except TraceError as error:
        first = error
    facts: dict[str, Any] = dict(reason=first.reason, message=str(first), where=first.where, **common)
    if first.reason == "input":
        return Attempt(ok=False, note="no ignore list can help: the sample inputs are not what the model takes", **facts)
    found = _propose(model, inputs, given, away, first)
    costs: tuple[IgnoreCost, ...] = ()
    if found.ignore is not None:
        chosen = select(model, given, found.ignore, warn=False)
        needed = {path for entry in found.needed for path in chosen.ignored[entry]}
        costs = tuple(replace(cost, needed=cost.path in needed or None) for cost in ignore_costs(model, chosen, chosen.ignored_paths))
    return Attempt(
        ok=False, proposed_ignore=found.ignore, needless=found.needless, note=found.note, tries=found.tries, costs=costs, **facts
    )


def _propose(model: nn.Module, inputs: dict[str, Any], given: tuple[str, ...] | None, away: tuple[str, ...], first: TraceError) -> Proposal:
    def attempt(ignore: tuple[str, ...], free: bool = False) -> TraceError | None:
        try:
            trace_selected(model, inputs, select(model, given, ignore, warn=False), free)
        except TraceError as error:
            return error
        return None

    return search(model, given, away, first, attempt)


def _counts(model: nn.Module, selection: Selection) -> dict[str, int]:
    modules = dict(model.named_modules(remove_duplicate=False))
    if selection.source == "given":
        return {name: len(select(model, name, ()).targets) for name in selection.names}
    counts = dict.fromkeys(selection.names, 0)
    for path in (*selection.targets, *selection.nested, *selection.covered):
        counts[type(modules[path]).__name__] += 1
    return counts


def _outer(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in paths if not any(other != path and inside(path, other) for other in paths))
