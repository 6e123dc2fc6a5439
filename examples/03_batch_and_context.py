"""A batch of prompts of different lengths, inside a conversation: padding is not counted, and the ids stand on the request."""

from models import load

import inferspan
from inferspan.report.session import read_session
from inferspan.report.terminal import summary

model, tokenizer = load()
prompts = ["Hello", "What is the tallest mountain on earth?", "Count: one, two,"]
inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")

with (
    inferspan.instrument(model, tokenizer=tokenizer, session_file="batch.otlp.jsonl"),
    inferspan.context(conversation_id="conversation-7", user_id="ada", tier="free"),
):
    model.generate(**inputs, max_new_tokens=8, do_sample=False)

inferspan.flush()
session = read_session("batch.otlp.jsonl")
print(summary(session))
attributes = session.requests[-1].span.attributes
for key in ("gen_ai.conversation.id", "user.id", "inferspan.batch.size", "gen_ai.usage.input_tokens", "inferspan.sequences.output_tokens"):
    print(f"{key} = {attributes[key]}")
print("prompt tokens without padding:", int(inputs["attention_mask"].sum()))
