"""Why is it slow: questions about one text, explained; then the change that is advised, and what it has brought.

Each question is asked with the whole text before it. To find out how much of the prompts is the same, explain compares their texts, so
content is captured. Change: the keys and values of the text are kept from request to request.
"""

from pathlib import Path

import torch
from models import load
from transformers import DynamicCache

import inferspan
from inferspan.explain.text import explanation_lines
from inferspan.report.figures.explained import explanation_of
from inferspan.report.session import read_session

QUESTIONS = ("What does a request become?", "Which folder imports torch?", "When does a request end?", "What is a stage?", "What is it?")
model, tokenizer = load()
text = tokenizer((Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")[:2200], return_tensors="pt").input_ids


def answer(question, cache=None):
    """Two tokens of an answer; a cache is cut back to the text, so that the next question goes on from there."""
    ids = tokenizer(f"\nQuestion: {question}\nAnswer:", return_tensors="pt").input_ids
    model.generate(torch.cat([text, ids], 1), past_key_values=cache, max_new_tokens=2, do_sample=False, pad_token_id=0)
    if cache is not None:
        cache.crop(text.shape[1] - cache.get_seq_length())


def explained(file, cache=None):
    """All questions, recorded and explained."""
    with inferspan.instrument(model, tokenizer, session_file=file, capture_content="SPAN_ONLY", max_content_chars=30_000, host=False):
        for question in QUESTIONS:
            answer(question, cache)
    inferspan.flush()
    return explanation_of(read_session(file))


before = explained("questions.otlp.jsonl")
print("\n".join(explanation_lines(before)), "\n")

after = explained("kept.otlp.jsonl", DynamicCache(config=model.config))
expected = before.causes[0].gain or 0.0
print(f"with the text kept in the cache: {after.total:.2f} s instead of {before.total:.2f} s")
print(f"expected: {expected:.2f} s less; it is {before.total - after.total:.2f} s less")
print("still to change:", ", ".join(cause.rule for cause in after.causes) or "nothing that explain finds")
