"""Models that a program builds and calls without a word of inferspan: which calls are requests, and that nothing else changes."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import semconv, zero_code
from tests.capture.batching.loops import generate_batch
from tests.cases import models
from tests.cases.telemetry import Telemetry

Observe = Callable[..., Any]


def bert() -> Any:
    """A tiny encoder."""
    from transformers import BertConfig, BertModel

    kind: Any = BertConfig
    return BertModel(kind(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)).eval()


def names(telemetry: Telemetry) -> list[str]:
    """Names of the requests' spans, by start."""
    return [span.name for span in telemetry.spans() if semconv.MODEL_ARCHITECTURE in (span.attributes or {})]


class Net(nn.Module):
    """A model of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def test_generate_is_one_request(telemetry: Telemetry, observe: Observe) -> None:
    """A ``generate()`` of a model that was built gives the request that ``instrument()`` would."""
    plain = models.llama().generate(models.prompt(), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    observe()
    seen = models.llama().generate(models.prompt(), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert torch.equal(seen, plain)
    attributes = telemetry.only()
    assert attributes[semconv.OUTPUT_TOKENS] == plain.shape[1] - models.prompt().shape[1]
    telemetry.check()


def test_continuous_batching_is_seen_from_its_first_request_on(telemetry: Telemetry, observe: Observe) -> None:
    """``generate_batch()`` of a model that was built gives a request for each prompt, though the model has not run before."""
    observe()
    found = generate_batch(models.llama())
    assert telemetry.usage() == [(len(one.prompt_ids), len(one.generated_tokens)) for one in sorted(found, key=lambda one: one.created_time)]
    assert telemetry.forwards() == []
    telemetry.check()


def test_forward_pass_is_one_request(telemetry: Telemetry, observe: Observe) -> None:
    """The first forward pass is a request as any later one is."""
    observe()
    model = bert()
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
        model(torch.tensor([[1, 2, 3]]))
    assert names(telemetry) == ["forward BertModel"] * 2
    telemetry.check()


def test_checkpoints_and_configurations(telemetry: Telemetry, observe: Observe, tmp_path: Path) -> None:
    """``from_pretrained``, ``from_config`` and the Auto classes build models that are observed."""
    from transformers import AutoModel, AutoModelForCausalLM, LlamaForCausalLM

    models.llama().save_pretrained(tmp_path)
    observe()
    ids = models.prompt()
    for model in (
        LlamaForCausalLM.from_pretrained(tmp_path),
        AutoModelForCausalLM.from_pretrained(tmp_path),
        AutoModelForCausalLM.from_config(models.llama().config).eval(),
    ):
        model.generate(ids, max_new_tokens=2, do_sample=False)
    with torch.no_grad():
        AutoModel.from_pretrained(tmp_path)(ids)
    assert len(telemetry.requests()) == 3
    assert [name.split()[0] for name in names(telemetry)][-1] == "forward"
    telemetry.check()


def test_pipeline(telemetry: Telemetry, observe: Observe) -> None:
    """A pipeline's model is observed, and the first call is a chat if it is one."""
    from transformers import pipeline

    from tests.cases.facts.test_operation import CHAT, _tokenizer

    observe()
    run = pipeline("text-generation", model=models.llama(), tokenizer=_tokenizer())
    run(CHAT, max_new_tokens=2, do_sample=False)
    assert telemetry.only()[semconv.OPERATION_NAME] == "chat"
    telemetry.check()


def test_template_before_the_first_call(telemetry: Telemetry, observe: Observe) -> None:
    """A chat template that was applied before the model was called for the first time is known."""
    from tests.cases.facts.test_operation import CHAT, _tokenizer

    observe()
    model = models.llama()
    ids = _tokenizer().apply_chat_template(CHAT, return_tensors="pt", add_generation_prompt=True, return_dict=False)
    model.generate(ids, max_new_tokens=2, do_sample=False)
    assert telemetry.only()[semconv.OPERATION_NAME] == "chat"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"])
def test_copies(telemetry: Telemetry, observe: Observe, copied: Callable[[Any], Any]) -> None:
    """A copy of a model is a model that is called for the first time."""
    observe()
    model = copied(bert())
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    assert names(telemetry) == ["forward BertModel"]
    telemetry.check()


def test_features_are_requests(telemetry: Telemetry, observe: Observe) -> None:
    """A method that does a request's work is one at its first call."""
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    text = CLIPTextConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, eos_token_id=2)
    vision = CLIPVisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    options: Any = {"text_config": text.to_dict(), "vision_config": vision.to_dict(), "projection_dim": 8}
    observe()
    model = CLIPModel(CLIPConfig(**options)).eval()
    with torch.no_grad():
        model.get_text_features(torch.tensor([[1, 2, 3]]))
    assert names(telemetry) == ["get_text_features CLIPModel"]


def test_modules_are_parts(telemetry: Telemetry, observe: Observe) -> None:
    """Models inside an observed one are its modules, also if they are called alone later."""
    observe()
    model, ids = models.llama(), models.prompt()
    with torch.no_grad():
        model(ids)
        model.model(ids)
    assert names(telemetry) == ["forward LlamaForCausalLM"]
    telemetry.check()


def test_inner_model_first(telemetry: Telemetry, observe: Observe) -> None:
    """A model that was called alone is a part from the first call of the one around it on."""
    observe()
    model, ids = models.llama(), models.prompt()
    with torch.no_grad():
        model.model(ids)
        model(ids)
        model(ids)
    assert names(telemetry) == ["forward LlamaModel", "forward LlamaForCausalLM", "forward LlamaForCausalLM"]
    telemetry.check()


def test_part_whose_whole_is_gone(telemetry: Telemetry, observe: Observe) -> None:
    """A part is a model of its own again once the model around it does not exist any more."""
    observe()
    model, ids = models.llama(), models.prompt()
    with torch.no_grad():
        model(ids)
        part = model.model
        del model
        gc.collect()
        part(ids)
    assert names(telemetry) == ["forward LlamaForCausalLM", "forward LlamaModel"]


def test_draft_model_is_nested(telemetry: Telemetry, observe: Observe) -> None:
    """A draft model inside ``generate()`` is a nested request, as if both had been instrumented."""
    observe()
    model, draft = models.llama(), models.llama(seed=1)
    model.generate(models.prompt()[-1:], assistant_model=draft, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert len(telemetry.requests(nested=False)) == 1
    assert telemetry.requests(nested=True)
    telemetry.check()


def test_training_is_no_request(telemetry: Telemetry, observe: Observe) -> None:
    """Passes in training mode with gradients are none, before and after the first request; those of evaluation are."""
    observe()
    model, ids = bert().train(), torch.tensor([[1, 2, 3]])
    model(ids).last_hidden_state.sum().backward()
    with torch.no_grad():
        model.eval()(ids)
    model.train()(ids).last_hidden_state.sum().backward()
    assert names(telemetry) == ["forward BertModel"]
    telemetry.check()


def test_frozen_part_of_training_is_no_request(telemetry: Telemetry, observe: Observe) -> None:
    """A model in evaluation mode that runs inside one that is trained is a part of it."""
    observe()
    model: Any = bert().train()
    part = bert().eval()
    model.encoder.layer[0].register_forward_pre_hook(lambda *_: part(torch.tensor([[1, 2]])) and None)
    with torch.enable_grad():
        model(torch.tensor([[1, 2, 3]]))
    assert names(telemetry) == []


def test_training_of_an_included_model(telemetry: Telemetry, observe: Observe) -> None:
    """They are if ``include`` names the model."""
    observe(include="BertModel")
    model = bert().train()
    model(torch.tensor([[1, 2, 3]]))
    assert names(telemetry) == ["forward BertModel"]


@pytest.mark.parametrize("pattern", ["LlamaForCausalLM", "transformers.models.llama.*", "acme/tiny-*"])
def test_excluded_model(telemetry: Telemetry, observe: Observe, pattern: str) -> None:
    """A model that ``exclude`` names by class, module or name is not observed, nor are the models in it."""
    observe(exclude=pattern)
    model, ids = models.llama(), models.prompt()
    model.config._name_or_path = "acme/tiny-7"
    model.generate(ids, max_new_tokens=2)
    with torch.no_grad():
        model(ids)
        model.model(ids)
    assert names(telemetry) == []


@pytest.mark.parametrize("pattern", ["Net", "tests.zero_code.test_models.Net", "*.test_models.Ne?"])
def test_included_class(telemetry: Telemetry, observe: Observe, pattern: str) -> None:
    """A class of the program's own is observed if ``include`` names it, and its output stays the same."""
    torch.manual_seed(1)
    plain = Net().eval()(torch.ones(1, 4))
    observe(include=pattern)
    torch.manual_seed(1)
    assert torch.equal(Net().eval()(torch.ones(1, 4)), plain)
    assert names(telemetry) == ["forward Net"]


def test_included_class_that_is_defined_later(telemetry: Telemetry, observe: Observe) -> None:
    """So is one that is defined after zero code has begun; one that no pattern names is not."""
    observe(include="Later*")

    class LaterNet(Net):
        pass

    class Other(Net):
        pass

    LaterNet().eval()(torch.ones(1, 4))
    Other().eval()(torch.ones(1, 4))
    assert names(telemetry) == ["forward LaterNet"]


def test_pattern_that_matches_nothing(observe: Observe, caplog: pytest.LogCaptureFixture) -> None:
    """It is one warning at the end, and the others work."""
    zero = observe(include="Nett,Net", exclude="Bart*")
    Net().eval()(torch.ones(1, 4))
    zero.tell_unused()
    zero.tell_unused()
    warned = [record.getMessage() for record in caplog.records if "no model matches" in record.getMessage()]
    assert [line.split(";")[0] for line in warned] == [
        "INFERSPAN_INCLUDE: no model matches Nett",
        "INFERSPAN_EXCLUDE: no model matches Bart*",
    ]


def test_everything_comes_off(observe: Observe) -> None:
    """After the end of zero code no class and no model has anything of it, called or not."""
    from transformers import GenerationMixin, PreTrainedModel

    watched = [(PreTrainedModel, "__init__"), (PreTrainedModel, "__setstate__"), (PreTrainedModel, "compile"), (GenerationMixin, "generate")]
    before = [kind.__dict__.get(name) for kind, name in watched]
    observe(include="Net")
    called, waiting, own = models.llama(), bert(), Net().eval()
    called.generate(models.prompt(), max_new_tokens=2)
    own(torch.ones(1, 4))
    zero_code.deactivate()
    assert [kind.__dict__.get(name) for kind, name in watched] == before
    assert "__init_subclass__" not in nn.Module.__dict__
    assert "generate" not in type(called).__dict__
    assert [name for model in (called, waiting, own) for part in model.modules() for name in part.__dict__ if name == "_compiled_call_impl"] == []


def test_models_are_not_kept_alive(observe: Observe) -> None:
    """A model goes when the program lets go of it, called or not."""
    observe()
    called, waiting = models.llama(), bert()
    called.generate(models.prompt(), max_new_tokens=2)
    references = [weakref.ref(called), weakref.ref(waiting)]
    del called, waiting
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_switched_on_twice(observe: Observe) -> None:
    """A second time changes nothing."""
    assert observe() is observe(include="Net")


def test_generate_of_its_own_class(telemetry: Telemetry, observe: Observe) -> None:
    """A class whose ``generate()`` calls that of all models with other arguments is called once, by the program's."""
    from transformers import LlamaForCausalLM

    called = []

    class Own(LlamaForCausalLM):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            called.append(kwargs["max_new_tokens"])
            return super().generate(*args, max_new_tokens=kwargs["max_new_tokens"] - 1, min_new_tokens=1, do_sample=False)

    observe()
    model: Any = Own(models.llama().config).eval()
    model.generate(models.prompt(), max_new_tokens=3)
    assert called == [3]
    assert len(telemetry.requests()) == 1
    telemetry.check()


def test_generate_of_an_object(telemetry: Telemetry, observe: Observe) -> None:
    """A model with a ``generate()`` that the program has put on it runs that once."""
    observe()
    model = models.llama()
    inner, called = model.generate, []

    def generate(*args: Any, **kwargs: Any) -> Any:
        called.append(1)
        return inner(*args, **kwargs)

    model.generate = generate
    model.generate(models.prompt(), max_new_tokens=2)
    model.generate(models.prompt(), max_new_tokens=2)
    assert called == [1, 1]
    telemetry.check()
