"""Requests that involve a tokenizer or a pipeline: stop strings, text streamers, pipelines. Counts come from ids, never from text."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, TextIteratorStreamer, pipeline

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

# The pipelines of transformers advise on devices and lengths.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:transformers")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One word for each token of the tiny models."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index:02d}": index for index in range(3, models.VOCABULARY - 1)}}
    # The stop string criterion of transformers measures tokens behind this text.
    words["abcdef"] = models.VOCABULARY - 1
    inner = Tokenizer(WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left")


def _exactly(tokens: int) -> dict[str, Any]:
    return {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens}


@pytest.mark.parametrize("rows", [1, 2])
def test_stop_strings(telemetry: Telemetry, tokenizer: Any, rows: int) -> None:
    """A stop string ends its row with the reason ``stop``, and what follows in other rows is not counted for it."""
    model = models.llama()
    ids = models.prompt(rows, 6)
    with torch.no_grad():
        free = model.generate(ids, **_exactly(8))
        word = f"w{int(free[0, 8]):02d}"
        telemetry.instrument(model)
        got = model.generate(ids, max_new_tokens=8, do_sample=False, suppress_tokens=[0, 2, 63], stop_strings=[word], tokenizer=tokenizer)
    telemetry.check()
    words = [[f"w{token:02d}" for token in row] for row in got[:, 6:].tolist()]
    counts = [row.index(word) + 1 if word in row else len(row) for row in words]
    attributes = telemetry.only()
    assert attributes[semconv.SEQUENCE_OUTPUT_TOKENS] == tuple(counts)
    assert attributes[semconv.FINISH_REASONS][0] == "stop"
    assert attributes[semconv.REQUEST_STOP_SEQUENCES] == (word,)


@pytest.mark.parametrize("read", [True, False], ids=["read", "abandoned"])
def test_text_iterator(telemetry: Telemetry, tokenizer: Any, read: bool) -> None:
    """A text iterator read in another thread gets everything; the span ends with generate(), read or not."""
    model = models.llama()
    telemetry.instrument(model)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)

    def work() -> None:
        with torch.no_grad():
            model.generate(models.prompt(1, 6), streamer=streamer, **_exactly(5))

    thread = threading.Thread(target=work)
    thread.start()
    text = "".join(streamer) if read else ""
    thread.join()
    telemetry.check()
    assert telemetry.usage() == [(6, 5)]
    assert not read or len(text.split()) <= 5
    assert telemetry.only()[semconv.TIME_TO_FIRST_CHUNK] > 0


@pytest.mark.parametrize("whole", [True, False], ids=["pipeline", "pipe.model"])
def test_text_generation_pipeline(telemetry: Telemetry, tokenizer: Any, whole: bool) -> None:
    """A pipeline, or the model in it: one request for each call of the pipeline, counts of ids without padding, results unchanged."""
    pipe = pipeline("text-generation", model=models.llama(), tokenizer=tokenizer, device="cpu")
    texts = ["w05 w06 w07", "w08 w09"]
    want = pipe(texts, batch_size=2, **_exactly(4))
    telemetry.instrument(pipe if whole else pipe.model)
    got = pipe(texts, batch_size=2, **_exactly(4))
    single = pipe(texts, **_exactly(4))
    assert got == want and len(single) == 2
    telemetry.check()
    assert telemetry.usage() == [(5, 8), (5, 8)]
    assert len(telemetry.roots()) == 2


def test_feature_extraction_pipeline(telemetry: Telemetry, tokenizer: Any) -> None:
    """A pipeline without generate() makes plain forwards, which are embeddings here."""
    model = models.llama().model
    pipe = pipeline("feature-extraction", model=model, tokenizer=tokenizer, device="cpu")
    telemetry.instrument(pipe)
    pipe("w05 w06 w07")
    telemetry.check()
    (request,) = telemetry.requests()
    assert (request.attributes or {})[semconv.OPERATION_NAME] == semconv.OPERATION_EMBEDDINGS


def test_content_without_candidates(telemetry: Telemetry, tokenizer: Any) -> None:
    """``top_k=0`` leaves out the likeliest tokens and nothing else."""
    model = models.llama()
    telemetry.instrument(model, tokenizer, capture_content="SPAN_ONLY", top_k=0)
    with torch.no_grad():
        got = model.generate(models.prompt(1, 6), **_exactly(3))
    telemetry.check()
    steps: list[Any] = [span.attributes for span in telemetry.spans() if semconv.STEP_TOKEN_IDS in (span.attributes or {})]
    assert [token for step in steps for token in step[semconv.STEP_TOKEN_IDS]] == got[0, 6:].tolist()
    assert not any(semconv.LOGITS_TOP_K_IDS in step for step in steps)


def test_content_only_when_asked_for(telemetry: Telemetry, tokenizer: Any) -> None:
    """Without leave neither ids nor text are anywhere, not even in the text of an error; with it they are those of the result."""
    model = models.llama()
    handle = telemetry.instrument(model, tokenizer)
    with torch.no_grad():
        model.generate(models.prompt(1, 6), **_exactly(3))
        with pytest.raises(IndexError):
            model.generate(torch.tensor([[5, 61234, 7, 8]]), **_exactly(3))
    handle.uninstrument()
    for span in telemetry.spans():
        bags = [span.attributes or {}, *(event.attributes or {} for event in span.events)]
        for bag in bags:
            assert not {semconv.TOKEN_IDS, semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.STEP_TOKEN_IDS} & set(bag)
            assert not any("61234" in str(value) or "w44" in str(value) for value in bag.values())
    telemetry.instrument(model, tokenizer, capture_content="SPAN_ONLY")
    with torch.no_grad():
        got = model.generate(models.prompt(1, 6), **_exactly(3))
    telemetry.check()
    attributes = dict(telemetry.requests()[-1].attributes or {})
    assert attributes[semconv.TOKEN_IDS] == tuple(got[0, 6:].tolist())
    assert tokenizer.decode(got[0, 6:]) in str(attributes[semconv.OUTPUT_MESSAGES])


def test_tokenizer_that_fails(telemetry: Telemetry, contained: list[Any]) -> None:
    """A tokenizer that raises costs the texts and nothing else."""

    class Broken:
        def decode(self, *_: Any, **__: Any) -> str:
            raise RuntimeError("no vocabulary")

        batch_decode = decode

    model = models.llama()
    telemetry.instrument(model, Broken(), capture_content="SPAN_ONLY")
    with torch.no_grad():
        model.generate(models.prompt(1, 6), **_exactly(3))
    telemetry.check(complaints=True)
    assert telemetry.usage() == [(6, 3)] and len(telemetry.steps()) == 3
    assert all(semconv.LOGITS_ENTROPY in (span.attributes or {}) for span in telemetry.steps())
    assert contained
    contained.clear()
