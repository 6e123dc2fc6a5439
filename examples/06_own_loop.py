"""A decoding loop of your own, in a session with stages: the same spans, tokens and statistics as ``generate()``."""

import inspect

import torch
from models import load

import inferspan
from inferspan.report.session import Span, read_session

TOKENS = 6
model, tokenizer = load()
handle = inferspan.instrument(model, modules="none", session_file="own_loop.otlp.jsonl")
# transformers has renamed the argument, and the output, that is the cache.
CACHE = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@torch.inference_mode()
def answer(question: str) -> str:
    """Greedy decoding with a cache."""
    with inferspan.stage("tokenize", characters=len(question)):
        inputs = tokenizer(question, return_tensors="pt")
    ids = inputs["input_ids"]
    with inferspan.generation(model, tokenizer=tokenizer, input_tokens=inputs, max_new_tokens=TOKENS) as g:
        with g.prefill():
            output = model(ids, use_cache=True)
        for _ in range(TOKENS):
            token = output.logits[:, -1].argmax(-1, keepdim=True)
            g.token(output.logits, token)
            ids = torch.cat([ids, token], dim=1)
            if token.item() == tokenizer.eos_token_id:
                break
            if ids.shape[1] < inputs["input_ids"].shape[1] + TOKENS:
                with g.step():
                    output = model(token, use_cache=True, **{CACHE: output[CACHE]})
        g.finish("length")
    with inferspan.stage("detokenize"):
        return tokenizer.decode(ids[0])


def show(span: Span, depth: int = 0) -> None:
    """Print a span and what is below it."""
    print("  " * depth + span.name)
    for child in span.children:
        show(child, depth + 1)


with inferspan.session("questions", tags={"mode": "greedy"}) as session:
    answer("The capital of France is")
print(handle.summary())
handle.uninstrument()

inferspan.flush()
found = read_session("own_loop.otlp.jsonl").requests[-1]
print("inside:", *found.callers)
request = found.span
show(request)
print("in this session:", request.attributes["inferspan.session.id"] == session.id)
print("finish reason:", *request.attributes["gen_ai.response.finish_reasons"])
