"""A program that asks the same question with each of the four ways to capture content, and once with lists and maps on the span."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import inferspan
from inferspan.demo import load_smollm2

PROMPT = "Once upon a time, the zanzibarium of Quokkaville was"
MODES = ("NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT")


def main(path: str) -> None:
    """Instrument, ask, remove, for each mode."""
    model, tokenizer = load_smollm2()
    inputs = tokenizer(PROMPT, return_tensors="pt")
    output = None
    for name, mode, form in (*((mode, mode, "json") for mode in MODES), ("structured", "SPAN_ONLY", "structured")):
        with (
            inferspan.instrument(model, tokenizer=tokenizer, capture_content=mode, content_format=form, modules="none"),
            inferspan.context(conversation_id=name),
        ):
            output = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    assert output is not None
    ids = output[0, inputs["input_ids"].shape[1] :].tolist()
    finish = "stop" if model.generation_config.eos_token_id in ids else "length"
    truth = {"prompt": PROMPT, "ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True), "finish": finish}
    Path(path).write_text(json.dumps(truth))


if __name__ == "__main__":
    main(sys.argv[1])
