"""Looking inside a model: figures of activations, NaN and Inf, weights, and logits of every position; then a report with a map of them."""

from pathlib import Path

import torch
from models import load

import inferspan
from inferspan.report.html import write_report
from inferspan.report.session import read_session

FILE = "inside.otlp.jsonl"
model, tokenizer = load()
handle = inferspan.instrument(
    model, tokenizer, observe="activation,debug", input_stats=True, every_step=True, session_file=FILE,
    top_k_positions="all", top_k=3, capture_content="EVENT_ONLY",
)  # fmt: skip
prompt = tokenizer("The capital of France is", return_tensors="pt")


def generate() -> None:
    """Eight tokens."""
    with torch.no_grad():
        model.generate(**prompt, do_sample=False, max_new_tokens=8, min_new_tokens=8)


generate()
print("layers, all calls together:")
for row in handle.activations("model.layers.?"):
    print(f"  {row.name}: {row.outputs}")
print(handle.numerics())
print(handle.check_weights())
first = handle.top_logits()[0].positions[-1]
print("largest logits after the prompt:", *(f"{text!r} {logit:.2f}" for text, logit in zip(first.texts, first.logits, strict=True)))

# What a bad weight does, and where it is.
with torch.no_grad():
    model.model.layers[1].mlp.down_proj.weight[0, 0] = float("inf")
handle.set(numerics=["model.layers.*"], output_stats=False, input_stats=False)
generate()
print("first bad output:", handle.numerics().first)
print("bad weights:", *handle.check_weights().problematic)

handle.flush()
print("wrote", write_report(read_session(Path(FILE)), "inside.html"))
