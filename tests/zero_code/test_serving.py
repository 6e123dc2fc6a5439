"""``inferspan run -m transformers.cli.transformers serve``: one request for each HTTP request, in the trace of the client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from tests.cases import models
from tests.matrix.pipelines import tokenizer
from tests.support.ports import free_ports
from tests.zero_code.programs import PATH, spans

for library in ("fastapi", "uvicorn", "openai", "pydantic", "transformers.cli.serving.server"):
    pytest.importorskip(library)
BATCHING = ("--continuous-batching", "--cb-num-blocks", "16", "--cb-block-size", "16", "--cb-max-batch-tokens", "64")
PROMPT = 4
"""Tokens of the words as the template puts them into a chat; the words alone are two."""


def _until(done: Callable[[], Any]) -> Any:
    """What ``done`` returns as soon as that is true."""
    deadline = time.monotonic() + 120
    while not (found := done()):
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)
    return found


def _is_up(port: int) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
    except OSError:
        return False


def _ask(port: int, path: str, trace: int, **body: Any) -> str:
    """The answer to a client whose span is in the trace of this number."""
    headers = {"Content-Type": "application/json", "traceparent": f"00-{trace:032x}-{trace:016x}-01"}
    data = json.dumps({"max_tokens": 5, **body}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/{path}", data, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(answer.read().decode())


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span.get("attributes", ())}


def _requests(file: Path) -> list[dict[str, Any]]:
    found = [span for span in spans(file) if semconv.OUTPUT_TOKENS in _attributes(span)] if file.exists() else []
    return sorted(found, key=lambda span: int(span["startTimeUnixNano"]))


@pytest.mark.parametrize("options", [(), BATCHING], ids=["one by one", "continuous batching"])
def test_requests_of_a_server(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A chat, a chat that streams, and a completion are requests with the tokens of their answers, from the first one on."""
    model = models.llama()
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    name, file, port = str(tmp_path / "tiny"), tmp_path / "out.otlp.jsonl", free_ports(1)[0]
    run = ["-m", "inferspan", "run", "--trace-output", str(file), "-m", "transformers.cli.transformers", "serve", name]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, *run, "--device", "cpu", "--port", str(port), *options], env=environment, stdout=log, stderr=log, cwd=tmp_path
        )
    try:
        _until(lambda: _is_up(port) or server.poll() is not None)
        assert server.poll() is None, (tmp_path / "log").read_text()
        chat = {"model": name, "messages": [{"role": "user", "content": "hello there"}]}
        usage = json.loads(_ask(port, "chat/completions", 1, **chat))["usage"]
        assert "data: " in _ask(port, "chat/completions", 2, **chat, stream=True)
        _ask(port, "completions", 3, model=name, prompt="hello there")
        requests = _until(lambda: len(made := _requests(file)) == 3 and made)
    finally:
        server.kill()
        server.wait()
    assert usage["prompt_tokens"] == PROMPT
    told = [_attributes(span) for span in requests]
    assert [one[semconv.OPERATION_NAME] for one in told] == ["chat", "chat", "text_completion"]
    assert [int(one[semconv.INPUT_TOKENS]) for one in told] == [PROMPT, PROMPT, 2]
    assert [int(one[semconv.OUTPUT_TOKENS]) for one in told] == [5, 5, 5]
    assert [one.get(semconv.REQUEST_STREAM) for one in told] == [None, True, None]
    # Spans of the server itself are those of fastapi, where it makes some.
    if any(span["name"] == "POST /v1/chat/completions" for span in spans(file)):
        assert [int(span["traceId"], 16) for span in requests] == [1, 2, 3]
