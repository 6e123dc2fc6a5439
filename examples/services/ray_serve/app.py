"""Ray Serve: two replicas, dynamic batching, streaming.

serve run app:app
"""

import sys
import threading
from pathlib import Path
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse
from transformers import TextIteratorStreamer

import inferspan

FOLDER = str(Path(__file__).absolute().parents[1])


@serve.deployment(num_replicas=2)
class Answers:
    """A replica has its own model, loaded and instrumented in its own process."""

    def __init__(self) -> None:
        sys.path.insert(0, FOLDER)  # a replica does not start in this folder
        from service_model import load

        self.model, self.tokenizer = load()
        inferspan.instrument(self.model, self.tokenizer)

    def __del__(self) -> None:
        """Ray calls it when a replica stops; soon after that it ends the process by SIGKILL."""
        inferspan.flush()

    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.05)
    async def answers(self, prompts: list[str]) -> list[str]:
        """One ``generate()`` for several callers; it belongs to none of them, so its request is a trace of its own."""
        token = otel_context.attach(otel_context.Context())
        try:
            inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
            output = self.model.generate(**inputs, max_new_tokens=8, do_sample=False)
        finally:
            otel_context.detach(token)
        return list(self.tokenizer.batch_decode(output))

    def stream(self, prompt: str) -> StreamingResponse:
        """A stream. The thread is started here, in the caller's span, and its request ends with the last token."""
        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, timeout=60)
        arguments = {**self.tokenizer(prompt, return_tensors="pt"), "max_new_tokens": 8, "do_sample": False, "streamer": streamer}
        threading.Thread(target=self.model.generate, kwargs=arguments).start()
        return StreamingResponse(streamer, media_type="text/plain")

    async def __call__(self, request: Request) -> Any:
        """``/?prompt=...``, with ``&stream=1`` in pieces, with ``&batch=1`` together with others."""
        prompt = request.query_params.get("prompt", "hello")
        with trace.get_tracer("serve").start_as_current_span("replica", propagate.extract(dict(request.headers))):
            if "batch" in request.query_params:
                return await self.answers(prompt)
            if "stream" in request.query_params:
                return self.stream(prompt)
            output = self.model.generate(**self.tokenizer(prompt, return_tensors="pt"), max_new_tokens=8, do_sample=False)
            return str(self.tokenizer.decode(output[0]))


app = Answers.bind()
