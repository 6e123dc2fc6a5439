"""Encoders and rerankers of sentence-transformers: one request a call, with the sums of what its batches were given."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from inferspan import semconv
from tests.cases.telemetry import Telemetry

from .conftest import LONGEST

TEXTS = ["hello there", "hello", "be kind hello there again", "be"]


def _tokens(model: Any, texts: Any) -> int:
    """Tokens of the texts, each made by itself, as the library passes them on."""
    return sum(int(model.preprocess([text])["attention_mask"].sum()) for text in texts)


def _embeddings(span: Any) -> dict[str, Any]:
    return {key: span.get(key) for key in (semconv.OPERATION_NAME, semconv.BATCH_SIZE, semconv.FORWARD_PASSES, semconv.INPUT_TRUNCATED)}


def test_encode_is_one_request(telemetry: Telemetry, make: Any) -> None:
    """``encode()`` in batches is one embeddings request of all texts, with their tokens and the number that was cut."""
    model = make("SentenceTransformer", "BertModel")
    want, tokens = model.encode(TEXTS, batch_size=3), _tokens(model, TEXTS)
    telemetry.instrument(model)
    got = model.encode(TEXTS, batch_size=3)
    assert numpy.array_equal(got, want)
    telemetry.check()
    span = telemetry.only(telemetry.roots())
    assert _embeddings(span) == {
        semconv.OPERATION_NAME: "embeddings",
        semconv.BATCH_SIZE: len(TEXTS),
        semconv.FORWARD_PASSES: 2,
        semconv.INPUT_TRUNCATED: 1,
    }
    assert span[semconv.INPUT_TOKENS] == tokens
    assert span[semconv.EMBEDDINGS_DIMENSION] == want.shape[1]
    assert semconv.UNOBSERVED not in span
    assert semconv.INPUT_SHAPES not in span
    assert telemetry.metric_sum("gen_ai.client.embeddings.operation.input_tokens") == tokens
    assert len(telemetry.metrics()["gen_ai.client.embeddings.duration"]) == 1


def test_passes_are_spans_of_the_model(telemetry: Telemetry, make: Any) -> None:
    """Each batch is a span of the model under the request, longest texts first as the library sorts them."""
    model = make("SentenceTransformer", "BertModel")
    telemetry.instrument(model)
    model.encode(TEXTS, batch_size=3)
    passes = [span for span in telemetry.modules() if (span.attributes or {}).get(semconv.MODULE_TYPE) == "SentenceTransformer"]
    assert [(span.attributes or {})[semconv.INPUT_SHAPES] for span in passes] == [(f"3x{LONGEST}",) * 2, ("1x2",) * 2]
    root = telemetry.roots()[0]
    assert {span.parent.span_id if span.parent else None for span in passes} == {root.context.span_id if root.context else 0}


@pytest.mark.parametrize(
    ("options", "dimension"),
    [({}, 16), ({"truncate_dim": 8}, 8), ({"precision": "ubinary"}, 16), ({"convert_to_tensor": True}, 16), ({"output_value": None}, 16)],
    ids=str,
)
def test_dimension_is_that_of_the_result(telemetry: Telemetry, make: Any, options: dict[str, Any], dimension: int) -> None:
    """The dimension is that of what the caller gets; packed bits count one by one."""
    model = make("SentenceTransformer", "BertModel")
    telemetry.instrument(model)
    model.encode(TEXTS, **options)
    assert telemetry.only(telemetry.roots())[semconv.EMBEDDINGS_DIMENSION] == dimension


def test_queries_and_documents(telemetry: Telemetry, make: Any) -> None:
    """``encode_query`` and ``encode_document`` are one request each, a single text as well."""
    model = make("SentenceTransformer", "BertModel")
    telemetry.instrument(model)
    model.encode_query("hello there")
    model.encode_document(TEXTS)
    sizes = [(span.attributes or {})[semconv.BATCH_SIZE] for span in telemetry.roots()]
    assert sizes == [1, len(TEXTS)]


def test_no_texts(telemetry: Telemetry, make: Any) -> None:
    """An empty list is a request without passes, of which nothing was missed."""
    model = make("SentenceTransformer", "BertModel")
    telemetry.instrument(model)
    model.encode([])
    span = telemetry.only(telemetry.roots())
    assert semconv.UNOBSERVED not in span
    assert semconv.BATCH_SIZE not in span
    assert semconv.FORWARD_PASSES not in span


def test_sparse_encoder(telemetry: Telemetry, make: Any) -> None:
    """A sparse encoder gives embeddings as large as the vocabulary."""
    model = make("SparseEncoder", "BertForMaskedLM")
    want = model.encode(TEXTS, batch_size=3).to_dense()
    telemetry.instrument(model)
    got = model.encode(TEXTS, batch_size=3).to_dense()
    assert torch.equal(got, want)
    span = telemetry.only(telemetry.roots())
    assert span[semconv.OPERATION_NAME] == "embeddings"
    assert span[semconv.EMBEDDINGS_DIMENSION] == want.shape[1]
    assert span[semconv.BATCH_SIZE] == len(TEXTS)


@pytest.mark.parametrize("call", ["predict", "rank"])
def test_reranker(telemetry: Telemetry, make: Any, call: str) -> None:
    """A cross-encoder scores pairs: a request named after the method, and no operation of the conventions."""
    model = make("CrossEncoder", "BertForSequenceClassification", num_labels=1)
    pairs = [("hello", text) for text in TEXTS]
    want = model.predict(pairs, batch_size=3)
    telemetry.instrument(model)
    if call == "predict":
        assert numpy.array_equal(model.predict(pairs, batch_size=3), want)
    else:
        scores = {one["corpus_id"]: one["score"] for one in model.rank("hello", TEXTS, batch_size=3)}
        assert [scores[number] for number in range(len(TEXTS))] == want.tolist()
    telemetry.check()
    root = telemetry.roots()
    assert [span.name.split()[0] for span in root] == ["predict"]
    span = telemetry.only(root)
    assert span[semconv.METHOD] == "predict"
    assert span[semconv.BATCH_SIZE] == len(pairs)
    assert span[semconv.FORWARD_PASSES] == 2
    assert semconv.OPERATION_NAME not in span
    assert telemetry.metric_sum("gen_ai.client.embeddings.duration") == 0


def test_failure_passes_through(telemetry: Telemetry, make: Any) -> None:
    """An error of the library is that of the request, and is raised as it is."""
    model = make("SentenceTransformer", "BertModel")
    telemetry.instrument(model)
    with pytest.raises(ValueError, match="batch_size"):
        model.encode(TEXTS, batch_size=0)
    assert telemetry.only(telemetry.roots())[semconv.ERROR_TYPE] == "ValueError"


def test_forward_of_an_encoder_is_a_pass(telemetry: Telemetry, make: Any) -> None:
    """Outside of ``encode()`` a call of the model is a plain forward pass, as of any module."""
    model = make("SentenceTransformer", "BertModel")
    telemetry.instrument(model)
    model(model.preprocess(TEXTS))
    span = telemetry.only(telemetry.roots())
    assert semconv.OPERATION_NAME not in span
    assert semconv.FORWARD_PASSES not in span


def test_methods_are_put_back(telemetry: Telemetry, make: Any) -> None:
    """After ``uninstrument()`` the class is as it was."""
    model = make("SentenceTransformer", "BertModel")
    before = type(model).encode
    handle = telemetry.instrument(model)
    assert type(model).encode is not before
    handle.uninstrument()
    assert type(model).encode is before
