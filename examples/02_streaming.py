"""Streaming: the request span ends with the stream, and time to first token is what the reader of the stream saw."""

import threading
import time

from models import load
from transformers import TextIteratorStreamer

import inferspan
from inferspan.report.session import read_session

model, tokenizer = load()
inputs = tokenizer("Once upon a time", return_tensors="pt")

with inferspan.instrument(model, session_file="streaming.otlp.jsonl"):
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    worker = threading.Thread(target=model.generate, kwargs={**inputs, "max_new_tokens": 24, "do_sample": False, "streamer": streamer})
    begin = time.perf_counter()
    worker.start()
    pieces = []
    for piece in streamer:
        if not pieces:
            print(f"first piece after {time.perf_counter() - begin:.3f} s, as seen by the reader")
        pieces.append(piece)
    worker.join()

inferspan.flush()
request = read_session("streaming.otlp.jsonl").requests[-1]
print(f"{len(pieces)} pieces")
print("streamed:", request.flag("gen_ai.request.stream"))
print("time to first token:", f"{request.number('inferspan.time_to_first_token'):.3f} s, from the entry of generate()")
print("time per output token:", f"{request.number('inferspan.time_per_output_token'):.4f} s")
