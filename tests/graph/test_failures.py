"""What breaks a trace is told with its class, its line and its modules, and an ignore list that was tried."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from inferspan import graph
from tests.graph import breaking, models

pytestmark = pytest.mark.filterwarnings("ignore")
SOURCE = Path(breaking.__file__).read_text(encoding="utf-8").splitlines()


def attempt(model: nn.Module, targets: list[str] | None = None, ignore: tuple[str, ...] = ()) -> graph.Attempt:
    """Try to trace a model of layers of four."""
    return graph.attempt_trace(model, None, False, targets, ignore, breaking.X, show=False)


@pytest.mark.parametrize(
    ("reason", "model"), [(reason, cls) for reason, classes in breaking.KINDS.items() for cls in classes], ids=lambda value: getattr(value, "__name__", value)
)
def test_each_kind_of_failure_has_its_class_and_place(reason: str, model: type[nn.Module]) -> None:
    """A model inside of another one fails with the class of its failure, in its own source and module."""
    result = attempt(breaking.Outer(model()), ["re:layers"])
    assert not result.ok
    assert result.reason == reason
    assert result.where is not None
    assert result.where.file == breaking.__file__
    assert result.where.modules[:2] == ("", "before")


def test_every_class_of_failure_has_a_model_here() -> None:
    """The table of classes and the models that show them agree."""
    assert breaking.KINDS.keys() == graph.REASONS.keys()


def test_every_class_of_failure_has_its_section() -> None:
    """The page has a heading for each, to which the text of an attempt links."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("### ").lower().replace(" ", "-") for line in page.splitlines() if line.startswith("### ")}
    assert {reason.replace("_", "-") for reason in graph.REASONS} <= headings
    assert "docs/tracing.md#control-flow" in str(attempt(breaking.Branch(), []))


def test_the_line_of_the_failure_is_told() -> None:
    """File, line, source, function and chain of modules."""
    result = attempt(breaking.Outer(breaking.Branch()), ["re:layers"])
    assert result.where is not None
    assert result.where.source == "if x.sum() > 0:"
    assert SOURCE[(result.where.line or 0) - 1].strip() == result.where.source
    text = str(result)
    assert f"at {breaking.__file__}:{result.where.line}" in text
    assert "modules: Outer > before" in text


def test_trace_raises_the_same_failure() -> None:
    """``trace`` raises it, with what the tracer raised as its cause."""
    with pytest.raises(graph.TraceError, match="data-dependent") as caught:
        graph.trace(breaking.Branch(), breaking.X, [])
    assert caught.value.reason == "control_flow"
    assert caught.value.__cause__ is not None


def test_the_proposed_list_works() -> None:
    """The innermost module around the break is proposed, and tracing with it works."""
    model = breaking.Outer(nn.Sequential(nn.Linear(4, 4), breaking.Branch()))
    result = attempt(model, ["re:layers"])
    assert result.proposed_ignore == ("before.1",)
    assert len(graph.trace(model, breaking.X, ["re:layers"], result.proposed_ignore).subgraphs) == 4
    assert "--ignore 'before.1'" in str(result)


def test_breaks_at_one_line_of_many_modules_are_one_entry() -> None:
    """The shortest list names their parent."""
    assert attempt(breaking.Outer(breaking.Tower()), ["re:layers"]).proposed_ignore == ("before",)


def test_given_entries_that_are_not_needed_are_dropped() -> None:
    """The shortest list lacks them, and they are named."""
    result = attempt(breaking.Outer(breaking.Branch()), ["re:layers"], ("head",))
    assert result.proposed_ignore == ("before",)
    assert result.needless == ("head",)


def test_given_entries_that_decide_the_targets_stay() -> None:
    """Without its entry the head would become a target."""
    result = attempt(breaking.Outer(breaking.Branch()), ["re:layers|head"], ("head",))
    assert set(result.proposed_ignore or ()) == {"head", "before"}


def test_a_break_in_a_module_that_holds_targets_is_named() -> None:
    """No ignore list helps; the function to rewrite and the fall-back are told."""
    result = attempt(breaking.BreaksItself(nn.Identity()), ["re:layers"])
    assert result.proposed_ignore is None
    assert "no ignore list can help: the failure is in the model's own forward, which holds the targets: rewrite BreaksItself.forward" in result.note
    assert "falls back to the targets as a chain (layer)" in str(result)


def test_joining_an_image_in_the_models_own_forward_is_named() -> None:
    """Qwen2-VL with an image breaks where its own forward joins image and text; text alone is traced."""
    model, sample, ignore = models.qwen2_vl_image()
    result = graph.attempt_trace(model.eval(), ignore=ignore, sample_inputs=sample, show=False)
    assert not result.ok
    assert result.where is not None
    assert result.where.module == "model"
    assert result.where.function is not None
    assert result.where.function.startswith("Qwen2VLModel.")
    assert "no ignore list can help" in result.note


def test_a_missing_input_is_no_matter_of_ignoring() -> None:
    """The note says that the sample is wrong."""
    result = attempt(breaking.Missing(), [])
    assert "the sample inputs are not what the model takes" in result.note


def test_costs_of_ignoring_are_part_of_the_proposal() -> None:
    """Weights that come as one block, modules that can no longer be targets, and that it is needed."""
    (cost,) = attempt(breaking.Outer(breaking.Tower()), ["re:layers"]).costs
    assert (cost.path, cost.module_class, cost.parameter_bytes, cost.modules, cost.needed) == ("before", "Tower", 3 * 80, 7, True)


def test_a_trace_leaves_the_counter_of_a_model_alone() -> None:
    """State that the copy changed is that of the copy."""
    model = breaking.Counter()
    attempt(model, [])
    assert model.calls == 0
    assert torch.is_grad_enabled()


class InAutocast(nn.Module):
    """Calls its layer in a block that torch.export makes one operation of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            result: torch.Tensor = self.layer(x)
        return result


def test_a_target_inside_autocast() -> None:
    """It fails where it is traced, with its path, and not on replay."""
    result = attempt(InAutocast(), ["layer"])
    assert (result.ok, result.reason) == (False, "untraceable_call")
    assert "'layer'" in str(result)


def test_a_chain_of_targets_inside_autocast() -> None:
    """The next pipeline takes them, and is the model."""
    model = InAutocast()
    traced = graph.trace(model, breaking.X, ["layer"], pipeline="auto")
    assert traced.pipeline == "layer" and torch.equal(traced.run(**breaking.X), model(**breaking.X))


def test_no_target_inside_autocast() -> None:
    """Then the block is an operation like others."""
    model = nn.Sequential(InAutocast(), nn.Linear(4, 4))
    x = {"input": breaking.X["x"]}
    assert torch.equal(graph.trace(model, x, ["1"]).run(**x), model(**x))
