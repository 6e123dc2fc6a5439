"""What tokens attended to, on the page: from weights in the session file, and from the keys that spans name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv
from inferspan.report.attention import MOST_KEYS
from inferspan.report.payload import payload
from inferspan.report.session import read_session
from tests.cases import models
from tests.cases.generate.test_texts import tokenizer  # noqa: F401  # a fixture
from tests.inside.attention.conftest import _nothing_compiled  # noqa: F401  # a fixture
from tests.inside.attention.truth import eager
from tests.report.test_document import check, report_of
from tests.support.programs import elsewhere

OPTIONS: dict[str, Any] = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}


def _model() -> Any:
    return models.llama(initializer_range=0.4, attn_implementation="sdpa")


def _write(path: str, tokenizer: Any, settings: dict[str, Any]) -> None:  # noqa: F811
    model = _model()
    handle = inferspan.instrument(model, tokenizer, session_file=path, nvml=False, host=False, attention=True, **settings)
    model.generate(models.prompt(), **OPTIONS)
    handle.uninstrument()
    inferspan.flush()


def _recorded(path: Path, tokenizer: Any, **settings: Any) -> tuple[dict[str, Any], Any]:  # noqa: F811
    """The request as the page has it, and what eager attention gives."""
    truth = eager(_model()).generate(models.prompt(), output_attentions=True, return_dict_in_generate=True, **OPTIONS)
    elsewhere(_write, str(path), tokenizer, settings)
    return payload(read_session(path))["requests"][0], truth


def test_weights_of_the_file(tmp_path: Path, tokenizer: Any) -> None:  # noqa: F811
    """Each query of each layer, the keys with most weight first, to an eighth of a percent."""
    request, truth = _recorded(
        tmp_path / "session.jsonl", tokenizer, attention_maps=True, attention_steps="all", capture_content="SPAN_ONLY"
    )
    attention = request["attention"]
    assert attention["layers"] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert [[step, query] for step, query, _ in attention["queries"]] == [*([0, query] for query in range(6)), [1, 6], [2, 7], [3, 8], [4, 9]]
    for step, query, layers in attention["queries"]:
        for layer, keys in layers:
            weights = truth.attentions[step][layer][0].mean(0)[query if step == 0 else 0]
            assert len(keys) <= MOST_KEYS
            assert [weight for _, weight in keys] == sorted((weight for _, weight in keys), reverse=True)
            for key, weight in keys:
                assert weight == pytest.approx(float(weights[key]), abs=0.0025)
    words = [tokenizer.decode([one]) for one in truth.sequences[0].tolist()]
    assert attention["texts"] == words
    _check_tokens(request, truth, words, number=3)


def _check_tokens(request: dict[str, Any], truth: Any, words: list[str], *, number: int) -> None:
    """The last query of a step chose its token; the mean is that over layers and heads."""
    place = payload_fields().index("attended")
    attended = request["tokens"][0][number][place]
    mean = torch.stack([layer[0].mean(0)[-1] for layer in truth.attentions[number]]).mean(0)
    assert attended[0][0] == f"{int(mean.argmax())} {words[int(mean.argmax())]}".strip()
    assert attended[0][1] == pytest.approx(float(mean.max()), abs=0.0025)


def payload_fields() -> tuple[str, ...]:
    """Names of the values of a token."""
    from inferspan.report.tokens import token_fields

    return token_fields()


def test_keys_of_the_spans(tmp_path: Path, tokenizer: Any) -> None:  # noqa: F811
    """Without weights in the file, the five keys of each layer: of a step with one query its own, of the prompt the mean."""
    request, truth = _recorded(tmp_path / "session.jsonl", tokenizer)
    queries = {(step, query): layers for step, query, layers in request["attention"]["queries"]}
    assert sorted(queries) == [(0, None), (1, None), (2, None), (4, None)]
    for layer, keys in queries[4, None]:
        weights = truth.attentions[4][layer][0].mean(0)[0]
        assert [weight for _, weight in keys] == pytest.approx(weights.topk(5).values.tolist(), abs=1e-4)
    place = payload_fields().index("attended")
    tokens = request["tokens"][0]
    assert [len(token) > place for token in tokens] == [False, True, True, False, True]
    assert semconv.ATTENTION_PROMPT not in request["attributes"]


@pytest.mark.parametrize("value", [(), (float("nan"),), (-1, 2.0**70, 10**30), "text", 5, (True, "x"), ("x", float("inf"))])
def test_odd_values_are_left_out(tmp_path: Path, tokenizer: Any, value: Any) -> None:  # noqa: F811
    """Whatever stands in the attributes, the page can be written."""
    path = tmp_path / "session.jsonl"
    _recorded(path, tokenizer, attention_maps=True)
    session = read_session(path)
    request = session.requests[0]
    spans = [request.span]
    for span in spans:
        spans += span.children
        span.attributes = {key: value if "attention." in key else one for key, one in span.attributes.items()}
    session.attention = {
        key: [{name: value if "attention." in name else one for name, one in record.items()} for record in records]
        for key, records in session.attention.items()
    }
    attention = payload(session)["requests"][0]["attention"]
    json.dumps(attention, allow_nan=False)
    assert attention.get("queries", []) == []
    assert attention.get("entropies", []) in ([], [None])


@pytest.mark.parametrize("data", ["", "!", "AAAA", "eJwDAAAAAAE="])
def test_a_damaged_record_is_passed_over(tmp_path: Path, tokenizer: Any, data: str) -> None:  # noqa: F811
    """Whatever stands in it."""
    path = tmp_path / "session.jsonl"
    _recorded(path, tokenizer, attention_maps=True)
    session = read_session(path)
    for records in session.attention.values():
        for record in records:
            assert isinstance(record, dict)
            record[semconv.ATTENTION_MAP_DATA] = data
    queries = payload(session)["requests"][0]["attention"]["queries"]
    assert all(query is None for _, query, _ in queries)


@pytest.mark.parametrize("maps", [True, False])
def test_the_json_report_has_the_same_figures(tmp_path: Path, tokenizer: Any, maps: bool) -> None:  # noqa: F811
    """Layers with entropy and sinks, keys of each query and texts are those of the page."""
    path = tmp_path / "session.jsonl"
    request, _ = _recorded(path, tokenizer, attention_maps=maps, capture_content="SPAN_ONLY")
    page = request["attention"]
    found = report_of(path)
    check(found)
    (own,) = found["attention"]["requests"]
    assert own["number"] == 1
    assert [one["module"] for one in own["layers"]] == page["layers"]
    assert [one["entropy_mean"] for one in own["layers"]] == page["entropies"]
    assert [one["sink_share"] for one in own["layers"]] == page["sinks"]
    assert all(one["entropy_mean"] > 0 for one in own["layers"])
    assert own["texts"] == page["texts"]
    assert (own["missing"], own["left_out"]) == (page["missing"], page["leftOut"])
    drawn = [[step, query, {page["layers"][place]: keys for place, keys in layers}] for step, query, layers in page["queries"]]
    assert [[one["step"], one["query"], one["keys"]] for one in own["queries"]] == drawn
    assert len(drawn) == (9 if maps else 4)


def test_without_attention_there_is_none_in_the_json_report(session_path: Path) -> None:
    """The key is there, and empty."""
    found = report_of(session_path)
    assert found["attention"] == {}
    assert found["data_flow"] == {}
