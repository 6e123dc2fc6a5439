"""No code change: nothing here is of inferspan. Record it with

inferspan run --trace-output zero.otlp.jsonl examples/12_no_code_change.py
inferspan report zero.otlp.jsonl --text
"""  # noqa: D415

import tempfile

from models import load
from transformers import AutoModelForCausalLM

model, tokenizer = load()
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder, max_shard_size="50KB")
    model = AutoModelForCausalLM.from_pretrained(folder)

inputs = tokenizer(["The capital of France is", "Two and two are"], return_tensors="pt", padding=True)
output = model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)
print("answers:", len(output))
print("new tokens:", output.shape[1] - inputs["input_ids"].shape[1])
