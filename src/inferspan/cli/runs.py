"""The commands ``aggregate``, ``trend`` and ``baseline``: ranks of a job, runs of a program, outputs of two versions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from .failure import Failure
from .paths import STDIN, STDOUT, file_or_folder, one_on_stdout, output, source

__all__ = ["add_aggregate", "add_baseline", "add_trend"]

_JSON = "figures to write; - for standard output, the text then goes to standard error"


def add_aggregate(commands: Any) -> None:
    """Add ``aggregate`` to a parser's commands."""
    command = commands.add_parser(
        "aggregate",
        help="compare the ranks of a job, and merge their session files",
        description="Read the session files of the ranks of one job: which ranks are there and which are missing, smallest,\n"
        "largest and average figures across ranks, slow ranks, offsets of clocks, and how busy all were.\n"
        "Damaged files are named, and the rest is used.",
        epilog="examples:\n  INFERSPAN_SESSION_FILE='rank{rank}.jsonl' torchrun --nproc-per-node 2 app.py\n"
        "  inferspan aggregate rank*.jsonl\n  inferspan aggregate rank*.jsonl -o merged.jsonl --json figures.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", metavar="FILE", type=source, nargs="+", help="session file, folder of them, or - for standard input")
    command.add_argument(
        "-o", "--output", metavar="JSONL", type=output, help="session file to write with the lines of all; - for standard output"
    )
    command.add_argument("--json", metavar="JSON", type=output, help=_JSON)
    command.add_argument(
        "--straggler", metavar="SHARE", type=_share, default=0.1,
        help="how much above the median of all ranks a slow one is, such as 0.1 or 10%% (default: 10%%)",
    )  # fmt: skip
    command.set_defaults(run=_aggregate)


def add_trend(commands: Any) -> None:
    """Add ``trend`` to a parser's commands."""
    command = commands.add_parser(
        "trend",
        help="compare archived runs with each other",
        description="Read session files and JSON reports, and put the runs of the same models, tags, machine and settings\n"
        "in order of time: TTFT, time per token, tokens/s, peak memory, utilisation and energy per token, with\n"
        "the change to the run before and to the median of all. Runs whose versions differ say so.",
        epilog="examples:\n  inferspan trend archive/\n  inferspan trend archive/ --json trend.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", metavar="PATH", type=source, nargs="+", help="folder, session file, JSON report, or - for standard input")
    command.add_argument("--json", metavar="JSON", type=output, help=_JSON)
    command.set_defaults(run=_trend)


def add_baseline(commands: Any) -> None:
    """Add ``baseline`` to a parser's commands."""
    command = commands.add_parser(
        "baseline",
        help="save figures of outputs by model version, or compare outputs with them",
        description="Read session files: length, entropy, confidence, repetition and findings of the outputs of each model\n"
        "and version. Write them to a baseline file, or compare them with one. A figure has drifted if the\n"
        "difference is large against its noise and against the spread of single requests.",
        epilog="exit codes: 0 no drift, or nothing to compare with; 1 drift; 2 cannot be judged: bad input, too few requests, a model\n"
        "that is not in the baseline\n\n"
        "examples:\n  inferspan baseline session.jsonl -o baseline.json\n  inferspan baseline today.jsonl --against baseline.json\n"
        "  INFERSPAN_BASELINE=baseline.json python app.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", metavar="FILE", type=source, nargs="+", help="session file, folder of them, or - for standard input")
    command.add_argument("-o", "--output", metavar="BASELINE", type=file_or_folder, help="baseline file to write, or to add to")
    command.add_argument("--against", metavar="BASELINE", type=Path, help="baseline file to compare with")
    command.add_argument("--json", metavar="JSON", type=output, help=_JSON)
    command.set_defaults(run=_baseline)


def _baseline(arguments: argparse.Namespace) -> int:
    from inferspan.analysis.baseline import Baseline, BaselineError
    from inferspan.report.files import session_files
    from inferspan.report.session import SessionFileError
    from inferspan.runs.baseline import DRIFT, UNDECIDED, compare, few, outputs_of
    from inferspan.text.numbers import counted

    written: Path | None = arguments.output
    if written is None and arguments.against is None:
        raise Failure("say what to do with the figures: -o FILE saves them, --against FILE compares them")
    if arguments.json is not None and arguments.against is None:
        raise Failure("--json writes a comparison: give the baseline with --against")
    told = sys.stderr if one_on_stdout([("--json", arguments.json)]) else sys.stdout
    try:
        found, code = outputs_of(session_files(arguments.files)), 0
        if arguments.against is not None:
            comparison = compare(Baseline.load(arguments.against), found)
            for line in comparison.lines():
                print(line, file=told)
            if arguments.json is not None:
                _write(arguments.json, comparison.as_dict(), told)
            code = {DRIFT: 1, UNDECIDED: 2}.get(comparison.verdict, 0)
        if written is not None:
            baseline = Baseline.load(written) if written.exists() else Baseline()
            for outputs in found:
                baseline.put(outputs)
            baseline.save(written)
            print(f"wrote {written}: {counted(sum(one.requests for one in found), 'request')}", file=told)
            for line in few(found):
                print(f"note: {line}", file=told)
    except (SessionFileError, BaselineError) as error:
        raise Failure(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write {written}: {error.strerror or error}; give another path with -o") from None
    return code


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not a share such as 0.1 or 10%")
    return value


def _aggregate(arguments: argparse.Namespace) -> None:
    from inferspan.report.files import session_files
    from inferspan.report.session import SessionFileError
    from inferspan.runs.aggregate import aggregate, merged
    from inferspan.runs.text import aggregate_lines
    from inferspan.text.numbers import counted

    merge: Path | None = arguments.output
    told = sys.stderr if one_on_stdout([("-o", merge), ("--json", arguments.json)]) else sys.stdout
    if merge is not None and STDIN in arguments.files:
        raise Failure("-o reads the files twice, which standard input cannot be: save it to a file first")
    try:
        files = session_files(arguments.files)
        if merge is not None and any(_same_file(file, merge) for file in files):
            raise Failure(f"the merged file would overwrite {merge}, which is read: give another name with -o")
        found = aggregate(files, straggler=arguments.straggler)
        for line in aggregate_lines(found):
            print(line, file=told)
        if merge is not None:
            count = merged(files, merge)
            print(f"wrote {_name(merge)}: {counted(count, 'line')}", file=told)
    except SessionFileError as error:
        raise Failure(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write {arguments.output}: {error.strerror or error}; give another path with -o") from None
    if arguments.json is not None:
        _write(arguments.json, found.as_dict(), told)


def _trend(arguments: argparse.Namespace) -> None:
    from inferspan.report.session import SessionFileError
    from inferspan.runs.text import trend_lines
    from inferspan.runs.trend import trend

    told = sys.stderr if one_on_stdout([("--json", arguments.json)]) else sys.stdout
    watched = sys.stderr is not None and sys.stderr.isatty()
    reading = (lambda path: print(f"reading {path}", file=sys.stderr)) if watched else (lambda path: None)
    try:
        found = trend(arguments.files, told=reading)
    except SessionFileError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"cannot read {error.filename}: {error.strerror}") from None
    for line in trend_lines(found):
        print(line, file=told)
    if arguments.json is not None:
        _write(arguments.json, found.as_dict(), told)


def _write(path: Path, found: Mapping[str, Any], told: TextIO) -> None:
    from inferspan.report.output.writing import write_text

    try:
        write_text(path, [json.dumps(found, indent=1, allow_nan=False), "\n"])
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise Failure(f"cannot write {path}: {reason}; give another path with --json") from None
    print(f"wrote {_name(path)}", file=told)


def _name(path: Path) -> str:
    return "standard output" if path == STDOUT else str(path)


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False
