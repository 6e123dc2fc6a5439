"""What is recorded of attention: spans, layers that gave no weights and why, bounds, weights that are kept, and a model left as it was."""

from __future__ import annotations

import base64
import json
import math
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from inferspan.capture.attention.results import Attention
from inferspan.settings import SettingsError
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached
from tests.support.programs import elsewhere

from .truth import OLD_TRANSFORMERS, check_call, eager

OPTIONS: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6}


def _llama(**changes: Any) -> Any:
    return models.llama(initializer_range=0.4, **{"attn_implementation": "sdpa", **changes})


class _Attention(nn.Module):
    """Causal attention by torch's function; may raise, or return nothing but its output."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.fails = False

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.project(hidden).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        if self.fails:
            raise ArithmeticError("wanted")
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)

    def truth(self, hidden: Tensor) -> Tensor:
        query, key, _ = self.project(hidden).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4).double()
        scores = query @ key.transpose(-1, -2) / 2
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(later, -math.inf), -1)


class _Plain(nn.Module):
    """A layer that computes its attention by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = _Attention()

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.attn(hidden)
        return output


class _ByHand(nn.Module):
    """Attention that gives no weights away."""

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.softmax(hidden @ hidden.transpose(1, 2), -1) @ hidden


def _functions() -> dict[str, Any]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return {"torch": nn.functional.scaled_dot_product_attention, **ALL_ATTENTION_FUNCTIONS}


def test_a_model_is_left_as_it_was(telemetry: Telemetry) -> None:
    """The same tokens, scores to the last bit and random numbers; the functions are those of before."""
    model, ids = _llama(), models.prompt()
    options = {**OPTIONS, "do_sample": True, "output_scores": True, "return_dict_in_generate": True}
    torch.manual_seed(3)
    want, after = model.generate(ids, **options), torch.rand(3)
    before = _functions()
    handle = telemetry.instrument(model, attention=True, attention_steps="all", attention_maps=True)
    torch.manual_seed(3)
    got, then = model.generate(ids, **options), torch.rand(3)
    assert torch.equal(got.sequences, want.sequences)
    assert all(torch.equal(one, other) for one, other in zip(got.scores, want.scores, strict=True))
    assert torch.equal(then, after)
    assert _functions() == before
    assert not any(attached(model).values())
    assert len(handle.attention().calls) == 12
    telemetry.check()


def test_spans_have_the_figures(telemetry: Telemetry) -> None:
    """A recorded call has its own figures, the request those of each layer."""
    model = _llama()
    handle = telemetry.instrument(model, attention=True)
    model.generate(models.prompt(), **OPTIONS)
    calls = {(call.module, call.step): call for call in handle.attention().calls}
    seen = 0
    for span in telemetry.modules():
        found: dict[str, Any] = dict(span.attributes or {})
        call = calls.get((found[semconv.MODULE_NAME], found[semconv.STEP_INDEX]))
        if not str(found[semconv.MODULE_NAME]).endswith("self_attn"):
            assert semconv.ATTENTION_SHAPE not in found
            continue
        assert call is not None
        seen += 1
        assert list(found[semconv.ATTENTION_SHAPE]) == list(call.shape)
        assert found[semconv.ATTENTION_SOURCE] == "recomputed"
        assert found[semconv.ATTENTION_ENTROPY_MEAN] == call.entropy_mean
        assert found[semconv.ATTENTION_PEAK] == call.peak_per_query_mean
        assert found[semconv.ATTENTION_PEAK_SHARE] == call.peak_per_query_mean / 4
        assert list(found[semconv.ATTENTION_HEAD_ENTROPIES]) == [head.entropy_mean for head in call.heads]
        assert list(found[semconv.ATTENTION_KEY_POSITIONS]) == [key.position for key in call.received_per_key[0]]
    assert seen == len(calls) == 8
    request = telemetry.only()
    assert list(request[semconv.ATTENTION_LAYERS]) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert list(request[semconv.ATTENTION_LAYER_ENTROPIES]) == [layer.entropy_mean for layer in handle.attention().layers]
    assert semconv.ATTENTION_MISSING not in request
    telemetry.check()


def test_off_by_default(telemetry: Telemetry) -> None:
    """Nothing is looked at, and nothing wrapped."""
    model = _llama()
    handle = telemetry.instrument(model)
    model.generate(models.prompt(), **OPTIONS)
    assert handle.attention() == Attention()
    assert not any("attention." in key and key != semconv.MODEL_ATTENTION for span in telemetry.spans() for key in span.attributes or {})


def test_switched_while_the_program_runs(telemetry: Telemetry) -> None:
    """From the next request on; a pattern that matches no layer changes nothing."""
    model = _llama()
    handle = telemetry.instrument(model)
    handle.set(attention=["model.layers.1.*"])
    model(models.prompt())
    assert [call.module for call in handle.attention().calls] == ["model.layers.1.self_attn"]
    with pytest.raises(SettingsError, match=r"'attention'.*'mlp\*' matches no layer"):
        handle.set(attention=["mlp*"])
    handle.set(attention=False)
    model(models.prompt())
    assert len(handle.attention().calls) == 1
    assert "model.layers.1.self_attn: 1 call, recomputed, entropy" in str(handle.attention())


@pytest.mark.parametrize("value", ["attn", 3, [], "yes"])
def test_a_wrong_value_is_refused(value: Any) -> None:
    """By its name."""
    with pytest.raises(SettingsError, match="'attention'"):
        inferspan.instrument(_llama(), attention=value)


@pytest.mark.parametrize("value", [True, [], [-1], "a", [0.5], pytest.param("7" * 5000, id="5000 digits")])
def test_wrong_heads_are_refused(value: Any) -> None:
    """Heads are numbers from 0."""
    with pytest.raises(SettingsError, match="'attention_heads'"):
        inferspan.instrument(_llama(), attention=True, attention_heads=value)


def test_torch_attention_of_any_module(telemetry: Telemetry) -> None:
    """A module that is not of transformers."""
    model, hidden = _Plain(), torch.randn(2, 7, 16)
    with torch.no_grad():
        want, weights = model(hidden), model.attn.truth(hidden)
        handle = telemetry.instrument(model, attention=True)
        assert torch.equal(model(hidden), want)
    (call,) = handle.attention().calls
    check_call(call, weights)
    telemetry.check()


def test_attention_of_torch(telemetry: Telemetry) -> None:
    """``nn.MultiheadAttention``: its kernel's queries and keys, and weights for each head where it returns such."""
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    model = nn.ModuleDict({"attn": layer})
    model.forward = lambda hidden, **options: layer(hidden, hidden, hidden, **options)
    hidden = torch.randn(2, 5, 16, requires_grad=True)
    handle = telemetry.instrument(model, attention=True)
    _, weights = layer(hidden, hidden, hidden, average_attn_weights=False)
    model(hidden, need_weights=False)
    model(hidden, average_attn_weights=False)
    assert [call.source for call in handle.attention().calls] == ["recomputed", "returned"]
    for call in handle.attention().calls:
        check_call(call, weights.detach().double())
    handle.uninstrument()
    averaged = telemetry.instrument(model, attention=True)
    model(hidden)
    assert averaged.attention().missing == {"attn": "not returned"}


def test_layers_that_give_no_weights(telemetry: Telemetry) -> None:
    """With the reason: attention by hand, and layers that were not called."""
    model = nn.ModuleDict({"attn": _ByHand(), "other_attention": _ByHand()})
    model.forward = lambda hidden: model["attn"](hidden)
    handle = telemetry.instrument(model, attention=True)
    model(torch.randn(1, 4, 8))
    assert handle.attention().missing == {"attn": "not returned", "other_attention": "not called"}
    assert handle.attention().layers == ()
    assert list(telemetry.only(telemetry.forwards())[semconv.ATTENTION_MISSING]) == ["attn: not returned", "other_attention: not called"]
    telemetry.check()


def test_a_fused_kernel(telemetry: Telemetry) -> None:
    """A layer of torch that runs as one operation is not hooked."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1, enable_nested_tensor=False).eval()
    hidden = torch.randn(2, 5, 16)
    with torch.no_grad():
        want = model(hidden)
        handle = telemetry.instrument(model, attention=True, modules="none")
        assert torch.equal(model(hidden), want)
    assert handle.attention().missing == {"layers.0.self_attn": "fused kernel"}


def test_heads_that_are_not_there(telemetry: Telemetry) -> None:
    """A layer without any of them is left out."""
    model = _Plain()
    handle = telemetry.instrument(model, attention=True, attention_heads=[7])
    model(torch.randn(1, 4, 16))
    assert handle.attention().missing == {"attn": "no such head"}
    assert handle.attention().left_out == {"no such head": 1}


def test_the_memory_bound(telemetry: Telemetry) -> None:
    """What needs more is left out and counted, and nothing else changes."""
    model, ids = _llama(), torch.randint(3, models.VOCABULARY, (1, 100))
    handle = telemetry.instrument(model, attention=True, attention_memory=0.01)
    model(ids)
    found = handle.attention()
    assert found.layers == ()
    assert found.left_out == {"over attention_memory": 2}
    assert found.missing == dict.fromkeys(("model.layers.0.self_attn", "model.layers.1.self_attn"), "over attention_memory")
    assert telemetry.only(telemetry.forwards())[semconv.ATTENTION_LEFT_OUT] == 2


def test_weights_that_are_kept(telemetry: Telemetry) -> None:
    """All of them, on the host; beyond the bound the oldest are dropped."""
    model, ids = _llama(), models.prompt()
    double = eager(model)
    handle = telemetry.instrument(model, attention=True, attention_maps=True, attention_memory=0.03)
    with torch.no_grad():
        model(ids)
        want = double(ids, output_attentions=True).attentions
    for call, weights in zip(handle.attention().calls, want, strict=True):
        assert call.weights.device.type == "cpu"
        assert torch.allclose(call.weights.double(), weights, atol=1e-5)
    for _ in range(100):
        model(ids)
    kept = [call.weights is not None for call in handle.attention().calls]
    assert kept[-1]
    assert not kept[0]
    assert sum(kept) * 4 * 4 * 36 <= 0.03 * 2**20


def _maps(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text().splitlines():
        for block in json.loads(line).get("resourceLogs", []):
            for record in (record for scope in block["scopeLogs"] for record in scope["logRecords"]):
                if record.get("eventName") == semconv.ATTENTION_MAP_EVENT:
                    found.append({one["key"]: one["value"] for one in record["attributes"]})
    return found


def _write(path: str) -> None:
    model = _llama()
    handle = inferspan.instrument(model, attention=True, attention_maps=True, session_file=path, nvml=False, host=False)
    with torch.no_grad():
        model(models.prompt())
    handle.uninstrument()
    inferspan.flush()


def test_weights_in_a_session_file(tmp_path: Path) -> None:
    """A record for each call; a weight is its byte times the scale."""
    model, ids, path = _llama(), models.prompt(), tmp_path / "session.jsonl"
    double = eager(model)
    elsewhere(_write, str(path))
    with torch.no_grad():
        want = double(ids, output_attentions=True).attentions
    records = _maps(path)
    assert len(records) == 2
    for record, weights in zip(records, want, strict=True):
        shape = [int(one["intValue"]) for one in record[semconv.ATTENTION_MAP_SHAPE]["arrayValue"]["values"]]
        data = zlib.decompress(base64.b64decode(record[semconv.ATTENTION_MAP_DATA]["stringValue"]))
        scale = record[semconv.ATTENTION_MAP_SCALE]["doubleValue"]
        found = torch.tensor(list(data), dtype=torch.float64).reshape(shape) * scale
        assert torch.allclose(found, weights, atol=scale)


@pytest.mark.skipif(OLD_TRANSFORMERS, reason="T5 returns its weights at another place before transformers 5")
def test_t5_returns_its_bias_before_its_weights(telemetry: Telemetry) -> None:
    """The position bias is a tensor of the same shape, and no weights."""
    model = models.t5()
    model.set_attn_implementation("eager")
    ids = torch.randint(3, 64, (1, 6))
    handle = telemetry.instrument(model, attention=["encoder.*"])
    with torch.no_grad():
        want = model.encoder(ids, output_attentions=True).attentions
        model(input_ids=ids, decoder_input_ids=ids[:, :2])
    found = {call.module: call for call in handle.attention().calls}
    for layer, weights in enumerate(want):
        check_call(found[f"encoder.block.{layer}.layer.0.SelfAttention"], weights.double())


def test_an_exception_of_the_model(telemetry: Telemetry) -> None:
    """It passes, and the next call is looked at as if nothing had been."""
    model, hidden = _Plain(), torch.randn(1, 4, 16)
    handle = telemetry.instrument(model, attention=True)
    model.attn.fails = True
    with pytest.raises(ArithmeticError, match="wanted"):
        model(hidden)
    model.attn.fails = False
    model(hidden)
    (call,) = handle.attention().calls
    check_call(call, model.attn.truth(hidden).detach())
    telemetry.check()


def test_requests_on_several_threads(telemetry: Telemetry) -> None:
    """Each gets its own calls, and a model that is not observed none."""
    model, other = _Plain(), _Plain()
    handle = telemetry.instrument(model, attention=True)
    inputs = [torch.randn(1, 3 + number, 16) for number in range(6)]

    def run(hidden: Tensor) -> None:
        for _ in range(10):
            model(hidden)
            other(hidden)

    threads = [threading.Thread(target=run, args=(hidden,)) for hidden in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = handle.attention().calls
    assert len(calls) == 60
    for call in calls:
        check_call(call, model.attn.truth(inputs[call.shape[2] - 3]).detach())
    assert nn.functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention
    telemetry.check()
