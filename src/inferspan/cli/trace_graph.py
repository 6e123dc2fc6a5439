"""The command ``trace-graph``: whether a model can be traced as a graph, and if not, what breaks, where, and what to ignore."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from .failure import Failure
from .paths import one_on_stdout, output

__all__ = ["add_trace_graph"]

_END = """\
MODEL is a folder with a config.json, or a hub id. The configuration is read, not the weights. Sample inputs are made by the model's own
tokenizer or processor if it has one, else from the configuration.

Targets and ignored modules are class names, exact paths, or 're:' patterns, which are matched from the start of the path.

exit codes: 0 traced, 1 it cannot be traced (the reason, the line and an ignore list that works are printed), 2 wrong arguments

examples:
  inferspan trace-graph ./Qwen2-VL-2B-Instruct --target Qwen2VLDecoderLayer --ignore lm_head --ignore 're:.*visual.*'
  inferspan trace-graph ./model --modality all
  inferspan trace-graph ./model --model-class my_package.modeling:MyModel --svg graph.svg --json graph.json
"""


def add_trace_graph(commands: Any) -> None:
    """Add ``trace-graph`` to a parser's commands."""
    command = commands.add_parser(
        "trace-graph",
        help="trace a model as a graph, or say what breaks",
        description="Trace the forward pass of a model on sample inputs, without computing, and cut it at its blocks.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("model", metavar="MODEL", help="a folder with config.json, or a hub id")
    command.add_argument(
        "--model-class", metavar="C", help="a class of transformers, or package.module:Class; default: of the configuration"
    )
    command.add_argument(
        "--modality",
        choices=("text", "image", "audio", "all"),
        help="sample inputs; default: text if the model takes it; all: a table of each",
    )
    command.add_argument(
        "--target", metavar="T", action="append", help="modules to cut at, can be repeated; default: the model's own blocks"
    )
    command.add_argument("--ignore", metavar="I", action="append", default=[], help="modules to call whole, can be repeated")
    command.add_argument("--batch", metavar="N", type=int, default=1, help="rows of the sample; default: %(default)s")
    command.add_argument("--length", metavar="N", type=int, default=64, help="tokens of a row; default: %(default)s")
    command.add_argument("--depth", metavar="N", type=int, default=2, help="depth of module paths in pictures; default: %(default)s")
    command.add_argument("--verbose", action="store_true", help="a line for each subgraph, and what ignored modules cost")
    command.add_argument("--json", metavar="F", type=output, help="write the result and the graph to this file, or - for standard output")
    command.add_argument("--svg", metavar="F", type=output, help="draw the graph into this file, or - for standard output")
    command.add_argument("--dot", metavar="F", type=output, help="write the picture for Graphviz, or - for standard output")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.depth < 0:
        raise Failure("--depth takes a number, 0 or more")
    if arguments.modality == "all" and (arguments.json or arguments.svg or arguments.dot):
        raise Failure("--modality all prints a table: --json, --svg and --dot need one modality")
    away = one_on_stdout([("--json", arguments.json), ("--svg", arguments.svg), ("--dot", arguments.dot)])
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        from inferspan.graph.attempt import attempt_trace
        from inferspan.graph.models.samples import modalities, sample_inputs
    except ImportError as error:
        raise Failure(f"trace-graph needs torch: {error}") from None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message="ignore=")
            warnings.showwarning = _warn
            model, cls = arguments.model, arguments.model_class
            known = modalities(model, cls)
            names = known if arguments.modality == "all" else (arguments.modality or next(iter(known), "text"),)
            results = []
            for name in names:
                sample = sample_inputs(model, name, arguments.batch, arguments.length, cls)
                results.append((name, attempt_trace(model, cls, False, arguments.target, arguments.ignore, sample, show=False)))
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise Failure(str(error)) from None
    if arguments.modality == "all":
        print(_table(results, arguments.model))
    else:
        print(results[0][1].text(arguments.verbose), file=sys.stderr if away else sys.stdout)
        _write(results[0][1], arguments)
    return 0 if all(result.ok for _, result in results) else 1


def _warn(message: Any, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _table(results: list[Any], name: str) -> str:
    lines = [f"{name}:", f"{'modality':10}{'traced':8}result"]
    for modality, result in results:
        lines.append(f"{modality:10}{'yes' if result.ok else 'no':8}{result.summary()}")
        if result.where is not None and result.where.file:
            lines.append(f"{'':18}at {result.where.file}:{result.where.line}")
        if result.proposed_ignore is not None:
            lines.append(f"{'':18}{' '.join(f'--ignore {entry!r}' for entry in result.proposed_ignore)}")
        elif result.note:
            lines.append(f"{'':18}{result.note}")
    return "\n".join(lines)


def _write(result: Any, arguments: argparse.Namespace) -> None:
    from inferspan.report.output.writing import write_text

    try:
        if arguments.json is not None:
            write_text(arguments.json, [result.to_json(indent=1), "\n"])
        if result.graph is not None:
            for path, draw in ((arguments.svg, result.graph.to_svg), (arguments.dot, result.graph.to_dot)):
                if path is not None:
                    write_text(path, [draw(arguments.depth)])
        elif arguments.svg or arguments.dot:
            print("inferspan: there is no graph to draw", file=sys.stderr)
    except OSError as error:
        raise Failure(f"the result cannot be written: {error}") from None
