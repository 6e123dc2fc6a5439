"""The managers of ``transformers serve``: requests of its handlers, without and with a stream, join the spans of their clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.capture.batching.loops import bounded, config, of_request, requests, said_by
from tests.cases import models
from tests.cases.telemetry import Telemetry

utils = pytest.importorskip("transformers.cli.serving.utils")


def _tokenizer() -> Any:
    """A tokenizer of one word for each id, as the handlers need it."""
    from tokenizers import Tokenizer, decoders
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(kinds.WordLevel({f"w{number}": number for number in range(models.VOCABULARY)}, unk_token="w0"))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0", eos_token="w2")


async def _serve(telemetry: Telemetry, model: Any) -> tuple[list[int], list[str]]:
    """Two clients at once: one waits for the whole answer, the other one reads a stream."""
    served, tokenizer = utils.CBGenerateManager(bounded()), _tokenizer()
    served.init_cb(model, config())
    tracer = telemetry.tracer_provider.get_tracer("server")
    prompt = {"input_ids": [5, 6, 7]}

    async def whole() -> list[int]:
        with tracer.start_as_current_span("POST whole"):
            _, _, found = await served.generate_non_streaming(model, tokenizer, prompt, config(), request_id="whole")
        return list(found)

    async def stream() -> list[str]:
        with tracer.start_as_current_span("POST stream"):
            queue, _ = served.generate_streaming(model, tokenizer, prompt, config(), request_id="stream")
            pieces: list[str] = []
            while (piece := await queue.get()) is not None:
                pieces.append(piece)
        return pieces

    try:
        found = await asyncio.gather(whole(), stream())
    finally:
        served.stop()
    return found[0], found[1]


def test_requests_of_a_server(telemetry: Telemetry) -> None:
    """Each client's request has its id, its tokens and the client's span as parent."""
    model = models.llama()
    telemetry.instrument(model)
    tokens, pieces = asyncio.run(_serve(telemetry, model))
    assert len(tokens) == 5
    assert len(pieces) > 0
    names = {span.context.span_id: span.name for span in telemetry.spans() if span.context is not None}
    for name in ("whole", "stream"):
        assert of_request(telemetry, name)[semconv.OUTPUT_TOKENS] == 5
    assert of_request(telemetry, "stream")[semconv.REQUEST_STREAM] is True
    parents = {said_by(request)[semconv.RESPONSE_ID]: names[request.parent.span_id] for request in requests(telemetry)}
    assert parents == {"whole": "POST whole", "stream": "POST stream"}


async def _one_by_one(telemetry: Telemetry, model: Any) -> int:
    """Two clients of the manager that has a thread for ``generate()``; gives the tokens of the first one."""
    served, tokenizer = utils.GenerateManager(), _tokenizer()
    tracer = telemetry.tracer_provider.get_tracer("server")
    prompt = {"input_ids": torch.tensor([[5, 6, 7]])}
    with tracer.start_as_current_span("POST whole"):
        _, _, found = await served.generate_non_streaming(model, tokenizer, prompt, config(eos_token_id=None), request_id="whole")
    with tracer.start_as_current_span("POST stream"):
        queue, _ = served.generate_streaming(model, tokenizer, prompt, config(eos_token_id=None), request_id="stream")
        while await queue.get() is not None:
            pass
    # The stream ends before the request does.
    await served.async_submit(lambda: None)
    return len(found)


def test_requests_of_a_thread(telemetry: Telemetry) -> None:
    """Without continuous batching the thread that runs ``generate()`` has the client's span as parent too."""
    model = models.llama()
    telemetry.instrument(model)
    assert asyncio.run(_one_by_one(telemetry, model)) == 5
    names = {span.context.span_id: span.name for span in telemetry.spans() if span.context is not None}
    found = [span for span in telemetry.spans() if semconv.OUTPUT_TOKENS in (span.attributes or {})]
    assert [names[span.parent.span_id] for span in found if span.parent] == ["POST whole", "POST stream"]
    assert [(span.attributes or {})[semconv.OUTPUT_TOKENS] for span in found] == [5, 5]
