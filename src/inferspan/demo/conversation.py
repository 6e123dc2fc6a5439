"""The demo: a small real language model from PyPI, some prompts, and what inferspan says about them.

In come file names and, at choice, a model folder; out go answers and a summary on standard output, progress on standard error, a
session file and a report. Missing packages and unwritable files end it with one ``DemoError`` that names the fix. torch and
transformers are imported only while it runs.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from inferspan.demo.line import working
from inferspan.demo.model import DemoError, load_model, load_smollm2, progress, require_folder
from inferspan.settings import CAPTURE_VARIABLE

__all__ = ["run_demo"]

SERVICE_NAME = "inferspan-demo"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Explain in one sentence why the sky is blue.",
)
_BATCH = ("What is 2 + 2?", "Write a very short poem about the sea.", "Who wrote Hamlet?")
_STREAMED = "Tell me a short story about a robot that learns to paint."
_FAILING = "This answer has nowhere to go."


def run_demo(*, session_file: Path, report_file: Path, model_dir: Path | None = None, quick: bool = False) -> None:
    """Run the whole demo.

    Args:
        session_file: OTLP JSON lines to write; an older one is replaced.
        report_file: HTML report to write.
        model_dir: folder of a causal language model with its tokenizer, instead of SmolLM2.
        quick: fewer and shorter answers.

    Raises:
        DemoError: the demo cannot run.
    """
    import inferspan
    from inferspan.report.html import write_report
    from inferspan.report.session import read_session
    from inferspan.report.terminal import summary
    from inferspan.settings import SettingsError

    if model_dir:
        require_folder(model_dir)
    _replace(session_file)
    _name_service(os.environ)
    begin = time.perf_counter()
    progress("loading torch, transformers and the model ...")
    with working("loading"):
        model, tokenizer = load_model(model_dir) if model_dir else load_smollm2()
    progress(f"loaded in {time.perf_counter() - begin:.1f} s")
    try:
        handle = inferspan.instrument(model, tokenizer=tokenizer, **_settings(session_file, os.environ))
    except SettingsError as error:
        raise DemoError(str(error)) from None
    with handle:
        _ask_everything(model, tokenizer, quick=quick)
    progress("writing the session ...")
    inferspan.flush()
    session = read_session(session_file)
    try:
        report_file.parent.mkdir(parents=True, exist_ok=True)
        write_report(session, report_file)
    except OSError as error:
        raise DemoError(f"cannot write report {report_file}: {error.strerror or error}; give another path with --report") from None
    print(f"\n{summary(session, colour=sys.stdout is not None and sys.stdout.isatty())}\n")
    print(_what_next(session_file, report_file, os.environ))


def _name_service(environ: MutableMapping[str, str]) -> None:
    if "service.name" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        environ.setdefault("OTEL_SERVICE_NAME", SERVICE_NAME)


def _settings(session_file: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    # It takes half a minute, in which the report draws curves of the machine.
    settings: dict[str, Any] = {"operation": "chat", "session_file": str(session_file), "sampler_interval": 1.0}
    if CAPTURE_VARIABLE not in environ:
        settings["capture_content"] = "SPAN_ONLY"
        progress(f"prompts and answers are recorded here, for they are ours; elsewhere only if you ask for it ({CAPTURE_VARIABLE})")
    return settings


def _ask_everything(model: Any, tokenizer: Any, *, quick: bool) -> None:
    import inferspan

    length = 12 if quick else 48
    with inferspan.context(conversation_id="demo"):
        questions = _QUESTIONS[:1] if quick else _QUESTIONS
        for number, question in enumerate(questions, 1):
            with working(f"answer {number} of {len(questions)}"):
                answers = _answers(model, tokenizer, [question], length)
            _say(question, answers)
        progress(f"a batch of {len(_BATCH)} questions, padded on the left")
        with working(f"{len(_BATCH)} answers at once"):
            answers = _answers(model, tokenizer, list(_BATCH), length)
        for question, answer in zip(_BATCH, answers, strict=True):
            _say(question, [answer])
        progress("a streamed answer")
        _stream(model, tokenizer, _STREAMED, length)
        progress("a request that fails, because the receiver of its stream goes away")
        _fail(model, tokenizer, length)


def _answers(model: Any, tokenizer: Any, questions: list[str], length: int) -> list[str]:
    inputs = _encode(tokenizer, questions)
    output = model.generate(**inputs, max_new_tokens=length, do_sample=False)
    texts: list[str] = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.strip() for text in texts]


def _stream(model: Any, tokenizer: Any, question: str, length: int) -> None:
    from transformers import TextIteratorStreamer

    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=120)
    arguments = {**_encode(tokenizer, [question]), "max_new_tokens": length, "do_sample": False, "streamer": streamer}
    # A new thread starts with an empty context: the conversation's id has to be carried over.
    worker = threading.Thread(target=contextvars.copy_context().run, args=(model.generate,), kwargs=arguments, name="demo-stream")
    worker.start()
    print(f"> {question}\n  ", end="", flush=True)
    for piece in streamer:
        print(piece.replace("\n", "\n  "), end="", flush=True)
    worker.join()
    print()


def _fail(model: Any, tokenizer: Any, length: int) -> None:
    class GoneReceiver:
        """A streamer whose receiver hangs up after some tokens, as a closed connection does."""

        def __init__(self) -> None:
            self.calls = 0

        def put(self, _: object) -> None:
            self.calls += 1
            if self.calls > 4:
                raise ConnectionResetError("the client closed the connection")

        def end(self) -> None:
            return

    inputs = _encode(tokenizer, [_FAILING])
    try:
        model.generate(**inputs, max_new_tokens=length, do_sample=False, streamer=GoneReceiver())
    except ConnectionResetError as error:
        print(f"> {_FAILING}\n  failed, as it should: {type(error).__name__}: {error}")


def _encode(tokenizer: Any, questions: list[str]) -> Mapping[str, Any]:
    if tokenizer.chat_template:
        questions = [
            tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
            for question in questions
        ]
    # The template has put the special tokens in already.
    encoded = tokenizer(questions, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=not tokenizer.chat_template)
    return dict(encoded)


def _say(question: str, answers: list[str]) -> None:
    print(f"> {question}")
    for answer in answers:
        print("  " + answer.replace("\n", "\n  "))


def _replace(session_file: Path) -> None:
    """Start with an empty file, readable by its owner only: the exporters append."""
    from inferspan.export.files.session_file import SessionFile
    from inferspan.settings import SettingsError

    try:
        session_file.parent.mkdir(parents=True, exist_ok=True)
        if session_file.is_symlink() or session_file.is_file():
            session_file.unlink()
        SessionFile(session_file).close()
    except OSError as error:
        raise DemoError(f"cannot write session file {session_file}: {error.strerror or error}; give another path with --session") from None
    except SettingsError as error:
        raise DemoError(str(error)) from None


def _command() -> str:
    """How this program was called: ``inferspan``, or the path of it in an environment that is not on the path."""
    name = sys.argv[0]
    return name if Path(name).name == "inferspan" else "inferspan"


def _what_next(session_file: Path, report_file: Path, environ: Mapping[str, str]) -> str:
    endpoint = next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
    lines = [f"session  {session_file}", f"report   {report_file}   (open it in a browser)"]
    if endpoint:
        service = environ.get("OTEL_SERVICE_NAME", SERVICE_NAME)
        lines.append(f"OTLP     {endpoint}, if it could be reached; in Jaeger choose the service {service}")
    else:
        lines += [
            "",
            "To see it in Jaeger and Prometheus, start them with `inferspan stack up` and send the same there:",
            f"  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 {_command()} demo",
            f"  then open http://localhost:16686 and choose the service {environ.get('OTEL_SERVICE_NAME', SERVICE_NAME)}",
        ]
    return "\n".join(lines)
