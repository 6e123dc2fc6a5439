"""Continuous batching of each kind of model in each way: results as without us, and one request for each of them with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.capture.batching.loops import bounded, config, manager, of_request, requests, results
from tests.cases.telemetry import Telemetry

from .kinds import GENERATING
from .marks import marked
from .pairs import BATCHED, Outcome

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [12]]
LONG = [3 + number % 60 for number in range(50)]


def _run(model: Any, prompts: list[list[int]], *, loop: Any = None, streaming: bool = False, **changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    number = len(prompts) * changes.get("num_return_sequences", 1)
    with manager(model, loop=loop, start=False, **changes) as made:
        for prompt in prompts:
            made.add_request(prompt, streaming=streaming)
        made.start()
        return results(made, number)


def _generate_batch(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.generate_batch(
        PROMPTS, generation_config=config(), continuous_batching_config=bounded(), progress_bar=False
    )
    return found


def _end_token(model: Any) -> dict[str, Any]:
    """Each row may end with any even token."""
    return _run(model, PROMPTS, eos_token_id=[*range(0, 64, 2)])


WAYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "`generate_batch()`": _generate_batch,
    "requests that stream": lambda model: _run(model, PROMPTS, streaming=True),
    "several sequences": lambda model: _run(model, PROMPTS[:1], num_return_sequences=2, do_sample=True),
    "prefill in chunks": lambda model: _run(model, [LONG], loop=bounded(max_batch_tokens=16)),
    "an end token": _end_token,
}


@pytest.mark.parametrize(("way", "kind", "outcome"), marked(BATCHED))
def test_continuous_batching(telemetry: Telemetry, way: str, kind: str, outcome: Outcome) -> None:
    """Tokens, requests and phases are those of the same loop without inferspan; what is not seen is said."""
    want = {name: result.generated_tokens for name, result in WAYS[way](GENERATING[kind].model()).items()}
    model = GENERATING[kind].model()
    telemetry.instrument(model)
    found = WAYS[way](model)
    assert {name: result.generated_tokens for name, result in found.items()} == want, "the output is another one"
    telemetry.check()
    parents = {name: result for name, result in found.items() if "__child#" not in name}
    assert len(requests(telemetry)) == len(parents)
    for name, result in parents.items():
        sequences = [len(one.generated_tokens) for key, one in sorted(found.items()) if key.split("__child#")[0] == name]
        said = of_request(telemetry, name)
        assert said[semconv.INPUT_TOKENS] == len(result.prompt_ids)
        assert sorted(said[semconv.SEQUENCE_OUTPUT_TOKENS]) == sorted(sequences)
        assert said[semconv.OUTPUT_TOKENS] == sum(sequences)
        assert said[semconv.DECODE_STEPS] == len(result.generated_tokens) - 1
        assert said.get(semconv.ERROR_TYPE) is None
        assert said[semconv.UNOBSERVED] == outcome.unobserved
    assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == sum(map(len, want.values()))
    assert len(telemetry.spans(semconv.SPAN_PREFILL)) == len(parents)
    assert telemetry.forwards() == []
