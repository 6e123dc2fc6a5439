"""Decorators and events around a model: a session, stages of every kind of function, and moments inside of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
from models import load

import inferspan

FILE = "events.otlp.jsonl"
model, tokenizer = load()
inferspan.instrument(model, modules="none", session_file=FILE)


@inferspan.event_on_return("prompt_ready", lambda result, text: {"characters": len(text), "tokens": result["input_ids"].shape[1]})
@inferspan.stage("tokenize")
def tokenize(text: str) -> dict[str, torch.Tensor]:
    """The prompt as tokens; the event stands on the stage."""
    return dict(tokenizer(text, return_tensors="pt"))


@inferspan.stage("answers")
async def answers(questions: list[str]) -> AsyncIterator[str]:
    """An answer for each question: one stage, open until the last one."""
    for number, question in enumerate(questions):
        inferspan.event("question", number=number)
        output = await asyncio.to_thread(model.generate, **tokenize(question), max_new_tokens=4, do_sample=False)
        yield tokenizer.decode(output[0])


@inferspan.session("questions", tags={"mode": "greedy"})
@inferspan.model_parameters(lambda args, kwargs: {"model_name": "a retriever that is no torch model", "parameters_count": 12})
async def main() -> None:
    """A session for each call."""
    async for text in answers(["The capital of France is", "The largest planet is"]):
        print(text)


def show(spans: list[dict[str, Any]], parent: str = "", depth: int = 0) -> None:
    """Print spans below each other, each with its events; phases and steps of requests are left out."""
    for span in spans:
        if span.get("parentSpanId", "") == parent and span["name"] not in ("prefill", "decode"):
            print("  " * depth + span["name"])
            for event in span.get("events", []):
                facts = {item["key"]: next(iter(item["value"].values())) for item in event.get("attributes", []) if "." not in item["key"]}
                print("  " * depth + f"* {event['name']} {facts}")
            show(spans, span["spanId"], depth + 1)


asyncio.run(main())
inferspan.flush()
lines = [json.loads(line) for line in Path(FILE).read_text().splitlines()]
recorded = [span for line in lines for part in line.get("resourceSpans", []) for scope in part["scopeSpans"] for span in scope["spans"]]
show(sorted(recorded, key=lambda span: int(span["startTimeUnixNano"])))
