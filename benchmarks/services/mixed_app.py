"""The service of ``mixed``: one model with inferspan and one without, which share their weights, behind one endpoint.

In: ``/chat?prompt=...&tokens=...&observed=0|1``. Out: the seconds of CPU that the request's thread has spent on it; ``/spent`` tells those of
the threads of inferspan and of the SDK.
"""

import copy
import importlib
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "services"))

import psutil
from fastapi import FastAPI

import inferspan

OWN = ("inferspan", "Otel")
"""What the names of their threads begin with."""

model, tokenizer = importlib.import_module("service_model").load()
plain = type(model)(model.config).eval()
plain.load_state_dict(model.state_dict(), assign=True)
plain.generation_config = copy.deepcopy(model.generation_config)
inferspan.instrument(model, tokenizer)
app = FastAPI()


@app.get("/chat")
def chat(prompt: str, tokens: int, observed: bool) -> dict[str, float]:
    """One answer."""
    begin = time.thread_time()
    inputs = tokenizer(prompt, return_tensors="pt")
    output = (model if observed else plain).generate(**inputs, max_new_tokens=tokens, do_sample=False)
    tokenizer.decode(output[0])
    return {"seconds": time.thread_time() - begin}


@app.get("/spent")
def spent() -> dict[str, float]:
    """Seconds of CPU since the beginning, by thread."""
    by_id = {one.id: one.user_time + one.system_time for one in psutil.Process().threads()}
    return {
        f"{thread.name} {thread.native_id}": by_id[thread.native_id]
        for thread in threading.enumerate()
        if thread.name.startswith(OWN) and thread.native_id in by_id
    }
