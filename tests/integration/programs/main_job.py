"""A program as a user writes it: a language model is instrumented in one line and asked a few things.

Where telemetry goes is in the environment. What the model really did, taken from what ``generate()`` returned and from a run before
anything was instrumented, is written as JSON to the path given as argument.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from opentelemetry import trace
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

import inferspan
from inferspan.demo import load_smollm2

QUESTION = "Once upon a time, the zanzibarium of Quokkaville was"
ANSWERED_AT_ONCE = "Why is the zanzibarium sky blue in Quokkaville?"
"""The model's first token is the end of the sequence."""
SHORT, LONG = "Hello quokkaling", "Name three zanzibarese rivers and the seas that they flow into"
STREAMED = "Count from one to five, zanzibarically"
FAILING = "This one fails, quokkatastrophically"
MAX_NEW = 12


class Collector(BaseStreamer):
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt first, then with each token."""
        self.received.extend(value.flatten().tolist())

    def end(self) -> None:
        """Called once, at the end."""
        self.ended = True


class Fails(LogitsProcessor):
    """Raises in the third step."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Count the step, pass the scores through, or fail."""
        self.calls += 1
        if self.calls == 3:
            raise ValueError("the third step is one too many")
        return scores


def outcome(model: Any, inputs: Any, output: torch.Tensor) -> dict[str, Any]:
    """Tokens by row, read from the result alone."""
    width = inputs["input_ids"].shape[1]
    ends = set(torch.as_tensor(model.generation_config.eos_token_id).flatten().tolist())
    rows = []
    for row in output[:, width:].tolist():
        stop = next((number + 1 for number, token in enumerate(row) if token in ends), None)
        rows.append((stop or len(row), "stop" if stop else "length"))
    return {
        "input": inputs["attention_mask"].sum(dim=1).tolist(),
        "output": [count for count, _ in rows],
        "finish": [reason for _, reason in rows],
        "ids": output[:, width:].tolist(),
    }


def statistics(model: Any, inputs: Any) -> dict[str, list[float]]:
    """Entropy of each step and log-probability of its token in double precision, from the raw logits of a plain run."""
    result = model.generate(**inputs, max_new_tokens=MAX_NEW, do_sample=False, output_logits=True, return_dict_in_generate=True)
    chosen = result.sequences[0, inputs["input_ids"].shape[1] :]
    logs = [torch.log_softmax(logits[0].double(), -1) for logits in result.logits]
    return {
        "entropies": [float(-(log.exp() * log).sum()) for log in logs],
        "logprobs": [float(log[token]) for log, token in zip(logs, chosen, strict=False)],
    }


def main(path: str) -> None:
    """Load, instrument, ask, and write down what happened."""
    model, tokenizer = load_smollm2()
    tokenizer.padding_side = "left"
    encode = lambda *texts: tokenizer(list(texts), return_tensors="pt", padding=len(texts) > 1)  # noqa: E731
    truth: dict[str, Any] = {
        "requests": {},
        "texts": [QUESTION, ANSWERED_AT_ONCE, SHORT, LONG, STREAMED, FAILING],
        "start_ns": time.time_ns(),
    }
    requests = truth["requests"]
    inputs = {
        "single": encode(QUESTION),
        "batched": encode(SHORT, LONG, ANSWERED_AT_ONCE),
        "streamed": encode(STREAMED),
        "failed": encode(FAILING),
    }
    truth["statistics"] = statistics(model, inputs["single"])
    greedy = {"max_new_tokens": MAX_NEW, "do_sample": False}

    handle = inferspan.instrument(model, tokenizer=tokenizer)
    with trace.get_tracer("program").start_as_current_span("handle question") as span:
        caller = span.get_span_context()
        truth["caller"] = {"trace": format(caller.trace_id, "032x"), "span": format(caller.span_id, "016x")}
        with inferspan.context(conversation_id="single"):
            requests["single"] = outcome(model, inputs["single"], model.generate(**inputs["single"], **greedy))
    with inferspan.context(conversation_id="batched", user_id="somebody"):
        requests["batched"] = outcome(model, inputs["batched"], model.generate(**inputs["batched"], **greedy))
    streamer = Collector()
    with inferspan.context(conversation_id="streamed"):
        requests["streamed"] = outcome(model, inputs["streamed"], model.generate(**inputs["streamed"], **greedy, streamer=streamer))
    assert streamer.ended
    assert streamer.received[-len(requests["streamed"]["ids"][0]) :] == requests["streamed"]["ids"][0]
    try:
        with inferspan.context(conversation_id="failed"):
            model.generate(**inputs["failed"], **greedy, logits_processor=LogitsProcessorList([Fails()]))
    except ValueError:
        requests["failed"] = {"input": inputs["failed"]["attention_mask"].sum(dim=1).tolist()}
    with inferspan.context(conversation_id="forward"), torch.no_grad():
        model(**inputs["single"])
    inferspan.flush()  # the machine is read while the model is instrumented, and this run may be over before the first export
    handle.uninstrument()
    truth["end_ns"] = time.time_ns()
    truth["texts"] += [tokenizer.decode(row, skip_special_tokens=True) for each in requests.values() for row in each.get("ids", ())]
    truth["layers"] = model.config.num_hidden_layers
    Path(path).write_text(json.dumps(truth))


if __name__ == "__main__":
    main(sys.argv[1])
