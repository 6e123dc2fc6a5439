"""Requests with a tokenizer: stop strings, streamers, pipelines, and content where it was asked for."""

# ruff: noqa: D103 - the name of a scenario says what it is; a docstring is there where it does not
from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
from transformers import TextIteratorStreamer, pipeline

from benchmarks.scenarios import models
from benchmarks.scenarios.models import prompt, tokenizer
from benchmarks.scenarios.registry import Table
from benchmarks.scenarios.run import Run, exactly, greedy

scenario = Table("text")


@scenario
def stop_strings(run: Run) -> None:
    model = models.llama()
    with torch.no_grad():
        free = model.generate(prompt(2), **exactly(8))
    words = {"stop_strings": [f"w{int(free[0, 8]):02d}"], "tokenizer": tokenizer(), "suppress_tokens": [0, 2, 63]}
    run.generate(run.watch(model), prompt(2), **words, **greedy(8))


class Streamer:
    """Collects what it is put; breaks at a number of them."""

    def __init__(self, breaks_at: int = 0) -> None:
        self.seen: list[Any] = []
        self.breaks_at = breaks_at

    def put(self, value: Any) -> None:
        self.seen.append(value)
        if len(self.seen) == self.breaks_at:
            raise BrokenPipeError("the reader is gone")

    def end(self) -> None:
        self.seen.append("end")


@scenario
def streamer(run: Run) -> None:
    listener = Streamer()
    run.generate(run.watch(models.llama()), prompt(), streamer=listener, **exactly(4))
    run.outcomes.append(len(listener.seen))


@scenario
def streamer_that_fails(run: Run) -> None:
    model = run.watch(models.llama())
    run.generate(model, prompt(), streamer=Streamer(3), raises=BrokenPipeError, **exactly(6))
    run.generate(model, prompt(), **exactly(2))


@scenario
def text_iterator(run: Run) -> None:
    model, reader = run.watch(models.llama(), tokenizer()), TextIteratorStreamer(tokenizer(), skip_prompt=True)
    thread = threading.Thread(target=lambda: run.generate(model, prompt(), streamer=reader, **exactly(4)))
    thread.start()
    run.outcomes.append("".join(reader))
    thread.join()


@scenario
def text_pipeline(run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = pipeline("text-generation", model=models.llama(), tokenizer=tokenizer(), device="cpu")
        run.watch(pipe)
        run.attempt(lambda: pipe("w04 w05 w09", **exactly(4)))


@scenario
def chat_pipeline_with_content(run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = pipeline("text-generation", model=models.llama(), tokenizer=tokenizer(), device="cpu")
        run.watch(pipe, capture_content="SPAN_AND_EVENT", operation="chat")
        run.attempt(lambda: str(pipe([{"role": "user", "content": "w04 w05"}], **exactly(3))))


@scenario
def feature_extraction_pipeline(run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = pipeline("feature-extraction", model=models.llama().model, tokenizer=tokenizer(), device="cpu")
        run.watch(pipe, operation="embeddings")
        run.attempt(lambda: len(pipe("w04 w05 w09")[0]))


# -------------------------------------------------------------------------------------------------------------------- content
@scenario
def content_on_spans(run: Run) -> None:
    run.generate(run.watch(models.llama(), tokenizer(), capture_content="SPAN_ONLY", top_k=3), prompt(2), **exactly(3))


@scenario
def content_in_events(run: Run) -> None:
    run.generate(run.watch(models.llama(), tokenizer(), capture_content="EVENT_ONLY"), prompt(2), **exactly(3))


@scenario
def content_on_both(run: Run) -> None:
    model = run.watch(models.llama(), tokenizer(), capture_content="SPAN_AND_EVENT", max_content_chars=10)
    run.generate(model, prompt(), **exactly(6))


@scenario
def content_without_event(run: Run) -> None:
    run.generate(run.watch(models.llama(), tokenizer(), capture_content="EVENT_ONLY", emit_event=False), prompt(), **exactly(3))


@scenario
def content_without_tokenizer(run: Run) -> None:
    run.generate(run.watch(models.llama(), capture_content="SPAN_AND_EVENT", top_k=2), prompt(), **exactly(3))


@scenario
def content_without_top_k(run: Run) -> None:
    run.generate(run.watch(models.llama(), tokenizer(), capture_content="SPAN_ONLY", top_k=0), prompt(), **exactly(3))


@scenario
def content_of_beams(run: Run) -> None:
    model = run.watch(models.llama(), tokenizer(), capture_content="SPAN_ONLY")
    run.generate(model, prompt(), num_beams=3, num_return_sequences=2, **exactly(3))


@scenario
def content_of_a_failed_request(run: Run) -> None:
    model = run.watch(models.llama(), tokenizer(), capture_content="SPAN_AND_EVENT")
    run.generate(model, prompt(), streamer=Streamer(3), raises=BrokenPipeError, **exactly(6))


class BrokenTokenizer:
    """Cannot decode anything."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no words")


@scenario
def content_with_a_broken_tokenizer(run: Run) -> None:
    run.generate(run.watch(models.llama(), BrokenTokenizer(), capture_content="SPAN_ONLY"), prompt(), **exactly(2))
