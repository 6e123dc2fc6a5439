"""FastAPI: a chat, a stream and a batch endpoint, and a call to another server.

    uvicorn app:app --workers 2

FastAPI 0.165 makes a span of each request by itself; with an older one add ``FastAPIInstrumentor.instrument_app(app)`` of the package
opentelemetry-instrumentation-fastapi.
"""

import os
import sys
import threading
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from opentelemetry import propagate
from service_model import load
from transformers import TextIteratorStreamer

import inferspan

model, tokenizer = load()
handle = inferspan.instrument(model, tokenizer)
app = FastAPI()


@app.get("/chat")
def chat(prompt: str, tokens: int = 8) -> dict[str, object]:
    """One answer. A plain ``def``: the server runs it on a thread of its pool, and the event loop stays free."""
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    return {"worker": os.getpid(), "text": tokenizer.decode(output[0])}


@app.get("/stream")
def stream(prompt: str, tokens: int = 8) -> StreamingResponse:
    """The answer in pieces. The thread is started here, so its request is a child of the span of this endpoint's request."""
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    arguments = {**tokenizer(prompt, return_tensors="pt"), "max_new_tokens": tokens, "do_sample": False, "streamer": streamer}
    threading.Thread(target=model.generate, kwargs=arguments).start()
    return StreamingResponse(streamer, media_type="text/plain")


@app.post("/batch")
def batch(prompts: list[str]) -> list[str]:
    """Several answers by one call."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    return list(tokenizer.batch_decode(output))


@app.get("/ask")
def ask(url: str) -> str:
    """Ask another server, such as vLLM: ``inject`` gives it our trace, so that its spans join ours."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    with inferspan.stage("ask"), urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return str(answer.read().decode())


@app.post("/recording/{on}")
def recording(on: bool) -> dict[str, object]:
    """Switch recording in the worker that answers, without a restart."""
    counts = None if on else handle.pause()
    if on:
        handle.resume()
    return {"worker": os.getpid(), "recording": handle.recording, "counts": counts}
