"""``inferspan.stop_on``: sequences that have gone wrong end, each on its own, others go on; requests say why."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from transformers import StoppingCriteriaList

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

CYCLE = (5, 9, 7)


class Scripted:
    """Has a model's logits choose what is wanted, by a hook on its language head.

    Args:
        model: the model.
        tokens: for each row, a function from the number of the step to an id.
    """

    def __init__(self, model: Any, *tokens: Any, margin: float = 50.0, bad: tuple[int, int] | None = None) -> None:
        self.step, self.tokens, self.margin, self.bad = 0, tokens, margin, bad
        model.lm_head.register_forward_hook(self)

    def __call__(self, module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        """A hook."""
        logits = torch.zeros_like(output)
        for row, token in enumerate(self.tokens):
            logits[row, -1, token(self.step)] = self.margin
        if self.bad is not None and self.step == self.bad[1]:
            logits[self.bad[0], -1, 3] = float("nan")
        self.step += 1
        return logits


def looping(step: int) -> int:
    """Ids of a loop of period 3 after five others."""
    return 20 + step if step < 5 else CYCLE[step % 3]


def healthy(step: int) -> int:
    """Ids without a loop."""
    return 3 + (step * step * 7 + step) % 59


def ask(model: Any, *stops: Any, rows: int = 1, most: int = 60, **options: Any) -> Any:
    """New ids ``[rows, n]`` of a greedy generation without an end token that is chosen."""
    prompt = torch.full((rows, 4), 4)
    options = {"do_sample": False, "max_new_tokens": most, "stopping_criteria": StoppingCriteriaList(stops), **options}
    result = model.generate(prompt, attention_mask=torch.ones_like(prompt), eos_token_id=63, pad_token_id=0, **options)
    return (result if isinstance(result, torch.Tensor) else result.sequences)[:, 4:]


def facts(telemetry: Telemetry) -> dict[str, Any]:
    """Attributes of the first request."""
    return dict(telemetry.requests()[0].attributes or {})


def short(*kinds: str) -> Any:
    """A criterion that needs few tokens."""
    return inferspan.stop_on(*kinds, loop_tokens=12, collapse_tokens=10, max_period=8)


def test_a_loop_ends_the_generation_and_the_request_says_so(telemetry: Telemetry) -> None:
    """Twelve tokens of a loop, which begins with the sixth token."""
    model = models.llama()
    Scripted(model, looping)
    telemetry.instrument(model)
    assert ask(model, short("loop")).shape[1] == 5 + 12
    assert facts(telemetry)[semconv.STOP_KINDS] == ("loop",)
    assert facts(telemetry)[semconv.FINISH_REASONS] == (semconv.FINISH_STOP,)


def test_a_loop_ends_without_instrumentation() -> None:
    """The criterion needs the ids alone."""
    model = models.llama()
    Scripted(model, looping)
    assert ask(model, short("loop")).shape[1] == 17


def test_a_real_model_that_loops_is_stopped(telemetry: Telemetry) -> None:
    """Greedy decoding of a tiny model falls into a loop; ids until then are those without the criterion."""
    model = models.llama()
    free = ask(model, most=120)
    telemetry.instrument(model)
    stopped = ask(model, short("loop"), most=120)
    assert stopped.shape[1] < 120
    assert torch.equal(stopped, free[:, : stopped.shape[1]])


def test_healthy_output_is_not_stopped(telemetry: Telemetry) -> None:
    """The attribute is absent then."""
    model = models.llama()
    Scripted(model, healthy, margin=4.0)
    telemetry.instrument(model)
    assert ask(model, short()).shape[1] == 60
    assert semconv.STOP_KINDS not in facts(telemetry)


def test_a_loop_in_the_prompt_is_none_of_the_output() -> None:
    """The prompt is four equal tokens, and output goes on with them for eight more."""
    model = models.llama()
    Scripted(model, lambda step: 4 if step < 8 else healthy(step))
    assert ask(model, short("loop")).shape[1] == 60


def test_each_row_of_a_batch_ends_on_its_own(telemetry: Telemetry) -> None:
    """The second of three rows loops: it gets padding, the others go on."""
    model = models.llama()
    Scripted(model, healthy, looping, lambda step: healthy(step + 9))
    telemetry.instrument(model)
    found = ask(model, short("loop"), rows=3)
    assert found.shape == (3, 60)
    assert found[1, 17:].tolist() == [0] * 43
    assert [int(one) for one in found[0]] == [healthy(step) for step in range(60)]
    attributes = facts(telemetry)
    assert attributes[semconv.STOP_KINDS] == ("", "loop", "")
    assert attributes[semconv.SEQUENCE_OUTPUT_TOKENS] == (60, 17, 60)


def test_logits_that_are_not_finite_end_their_row(telemetry: Telemetry) -> None:
    """A NaN in the fourth step of the first row."""
    model = models.llama()
    Scripted(model, healthy, healthy, bad=(0, 3))
    telemetry.instrument(model)
    ask(model, short("nonfinite"), rows=2)
    attributes = facts(telemetry)
    assert attributes[semconv.STOP_KINDS] == ("nonfinite", "")
    assert attributes[semconv.SEQUENCE_OUTPUT_TOKENS] == (4, 60)


def test_collapsed_entropy_ends_its_row(telemetry: Telemetry) -> None:
    """Ten steps whose distribution is one token; the other row is never sure."""
    model = models.llama()
    Scripted(model, healthy, healthy)
    telemetry.instrument(model)
    assert ask(model, short("collapse"), rows=2).shape[1] == 10
    assert facts(telemetry)[semconv.STOP_KINDS] == ("collapse", "collapse")


def test_scores_of_the_loop_serve_a_model_that_is_not_instrumented() -> None:
    """``output_scores`` gives the logits."""
    model = models.llama()
    Scripted(model, healthy, bad=(0, 3))
    assert ask(model, short("nonfinite"), return_dict_in_generate=True, output_scores=True).shape[1] == 4


def test_without_logits_nothing_is_stopped_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """The output is that without a criterion."""
    model = models.llama()
    Scripted(model, healthy, bad=(0, 3))
    assert ask(model, short("nonfinite")).shape[1] == 60
    assert "sees no logits" in caplog.text


def test_a_static_cache_changes_nothing() -> None:
    """Ids decide."""
    model = models.llama()
    Scripted(model, looping)
    assert ask(model, short("loop"), cache_implementation="static", disable_compile=True).shape[1] == 17


def test_beams_end_by_their_ids_and_not_by_logits(telemetry: Telemetry) -> None:
    """A loop is found in each hypothesis; logits are not those of the hypotheses, which is refused."""
    model = models.llama()
    telemetry.instrument(model)
    free, stopped = ask(model, most=80, num_beams=2), ask(model, short("loop"), most=80, num_beams=2)
    assert stopped.shape[1] <= free.shape[1]
    with pytest.raises(ValueError, match="beam search"):
        ask(model, short("nonfinite"), num_beams=2)


def test_assisted_decoding_is_stopped_by_a_loop_and_refused_for_logits(telemetry: Telemetry) -> None:
    """Several tokens come at once there; which logits were accepted is not seen."""
    model, draft = models.llama(), models.llama()
    telemetry.instrument(model)
    free = ask(model, most=120)
    stopped = ask(model, short("loop"), most=120, assistant_model=draft)
    assert stopped.shape[1] < 120
    assert torch.equal(stopped, free[:, : stopped.shape[1]])
    with pytest.raises(ValueError, match="assisted decoding"):
        ask(model, short("nonfinite"), assistant_model=draft)


@pytest.mark.parametrize("options", [{}, {"return_dict_in_generate": True, "output_scores": True}], ids=["ids", "scores"])
def test_assisted_decoding_says_what_has_ended_it(telemetry: Telemetry, options: dict[str, Any]) -> None:
    """Also where the first pass has accepted several tokens of the draft."""
    model, draft = models.llama(), models.llama()
    telemetry.instrument(model)
    stopped = ask(model, short("loop"), most=120, assistant_model=draft, **options)
    (request,) = telemetry.requests()
    assert stopped.shape[1] < 120
    assert (request.attributes or {})[semconv.STOP_KINDS] == ("loop",)


def test_one_criterion_serves_one_call_after_another() -> None:
    """The second call begins anew."""
    model = models.llama()
    script, stop = Scripted(model, looping), short("loop")
    ask(model, stop)
    script.step = 0
    assert ask(model, stop).shape[1] == 17


def test_copies_are_new_criteria() -> None:
    """Of a deep copy and of a pickle."""
    stop = short("loop", "nonfinite")
    for other in (copy.deepcopy(stop), pickle.loads(pickle.dumps(stop))):
        assert other.kinds == ("loop", "nonfinite")


@pytest.mark.parametrize(
    ("kinds", "options", "said"),
    [
        (("loops",), {}, "does not know 'loops'"),
        ((), {"loop_tokens": 3}, "from 8 to"),
        ((), {"max_period": 0}, "from 1 to 256"),
        ((), {"entropy": 0}, "above 0"),
    ],
)
def test_wrong_arguments_are_named(kinds: tuple[str, ...], options: dict[str, Any], said: str) -> None:
    """Each with what is allowed."""
    with pytest.raises(ValueError, match=said):
        inferspan.stop_on(*kinds, **options)


def test_without_transformers_the_error_names_it() -> None:
    """Nothing else of the package needs it."""
    code = """
import sys
sys.modules["transformers"] = None
import inferspan
try:
    inferspan.stop_on("loop")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "pip install transformers" in done.stdout
