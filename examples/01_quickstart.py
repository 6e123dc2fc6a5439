"""The shortest way: instrument a model, use it as always, read the summary, open the report.

Run it with ``python examples/01_quickstart.py`` (a tiny random model) or with ``--smollm2`` (a real one). It leaves
a session file behind (a second run adds to it); ``inferspan report quickstart.otlp.jsonl -o report.html`` shows it.
"""

from models import load

import inferspan

model, tokenizer = load()
handle = inferspan.instrument(model, tokenizer=tokenizer, session_file="quickstart.otlp.jsonl")

inputs = tokenizer("The capital of France is", return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=16)
print(tokenizer.decode(output[0], skip_special_tokens=True))

print(handle.summary())
handle.uninstrument()
