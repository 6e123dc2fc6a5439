"""Which modules are selected, what they are called, and how hooks come and go."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import semconv
from inferspan.capture.modules.hooks import ModuleObservers
from inferspan.capture.modules.selection import select
from inferspan.settings import Settings, SettingsError
from tests.cases import models, multimodal
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached


class Tower(nn.Module):
    """Layers under one name."""

    def __init__(self, name: str = "layers") -> None:
        super().__init__()
        self.add_module(name, nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))]))


def _names(root: nn.Module, modules: str | tuple[str, ...] = "layers", style: str = "layer") -> list[str]:
    return [info.span_name for _, info, _ in select(root, modules, style)]


def test_layers_and_their_blocks() -> None:
    """Layers, attention and MLP of a language model; not its embeddings, norms or projections."""
    assert set(_names(models.llama())) == {f"layer {index}{part}" for part in ("", " self_attn", " mlp") for index in (0, 1)}


@pytest.mark.parametrize("make", [models.llama, models.t5, models.bart, models.whisper, models.llava])
@pytest.mark.parametrize("modules", ["layers", "all"])
def test_names_are_unique(make: Any, modules: str) -> None:
    """No two modules of a model share a span name, whatever towers it has."""
    names = _names(make(), modules)
    assert names and len(set(names)) == len(names)


def test_towers_are_told_apart() -> None:
    """Two lists of layers carry the word in which their paths differ."""
    model = nn.ModuleDict({"encoder": Tower(), "decoder": Tower("blocks")})
    assert {"encoder layer 0", "decoder layer 1"} <= set(_names(model))
    assert "encoder.layers.0" in _names(model, style="path") and "Sequential" in _names(model, style="type")


def test_nested_numbers() -> None:
    """The outermost number is the layer."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    assert _names(model, "all") == ["layer 0", "layer 0 0", "layer 0 1"]


def test_small_model_without_layers_is_shown_whole() -> None:
    """Where nothing is numbered, a small model shows every module and a large one its top level."""
    small = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.ModuleDict({"c": nn.Linear(2, 2)})})
    assert _names(small) == ["a", "b.c"]
    large = nn.ModuleDict({f"part{chr(97 + index)}": Holder() for index in range(26)})
    assert len(_names(large)) == 26


class Holder(nn.Module):
    """Three modules without a number."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)


def test_patterns() -> None:
    """Patterns select by path, each module once; one without a match is refused with names that exist."""
    model = models.llama()
    assert _names(model, ("model.layers.0.*", "*.mlp"), "path")[:2] == ["model.layers.0.self_attn", "model.layers.0.mlp"]
    assert len(_names(model, ("*", "*"))) == len(_names(model, "all"))
    with pytest.raises(SettingsError, match=r"pattern 'nope\*' matches no module; names look like model"):
        select(model, ("nope*",), "layer")


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("group:vision", ("vision", "visual", "image", "patch")),
        ("group:fusion", ("fusion", "multimodal", "multi_modal", "projector", "connector", "merger")),
        ("group:language", ("language_model", "lm_head", "embed", "transformer", "layers")),
    ],
)
def test_groups(group: str, words: tuple[str, ...]) -> None:
    """A group is every module whose path holds one of its words."""
    model = multimodal.idefics3()
    paths = [path for path, module in model.named_modules() if path and not isinstance(module, torch.nn.ModuleList)]
    assert sorted(_names(model, (group,), "path")) == sorted(path for path in paths if any(word in path.lower() for word in words))


def test_groups_and_patterns_together() -> None:
    """Each module once."""
    model = multimodal.idefics3()
    found = _names(model, ("group:fusion", "model.connector", "lm_head"), "path")
    assert set(_names(model, ("group:fusion",), "path")) | {"lm_head"} == set(found)
    assert len(found) == len(set(found))


def test_a_group_ignores_case() -> None:
    """Names of modules may begin with a capital."""
    model = nn.ModuleDict({"AudioTower": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    assert _names(model, ("group:audio",), "path") == ["AudioTower"]


def test_a_group_without_a_module_is_refused() -> None:
    """With names that exist, as for a pattern."""
    with pytest.raises(SettingsError, match=r"group 'group:audio' matches no module; names look like model"):
        select(models.llama(), ("group:audio",), "layer")


@pytest.mark.parametrize("value", ["group:sight", ["*", "group:"], "group:vision,group:x"])
def test_an_unknown_group_is_refused(value: object) -> None:
    """The error names the groups."""
    with pytest.raises(SettingsError, match="those are group:vision, group:audio, group:fusion, group:language"):
        Settings(modules=value)  # type: ignore[arg-type]


def test_a_group_from_the_environment() -> None:
    """One word is enough, also with patterns beside it."""
    assert Settings.resolve(environ={"INFERSPAN_MODULES": "group:vision"}).modules == ("group:vision",)
    assert Settings.resolve(environ={"INFERSPAN_MODULES": "group:vision, *.mlp"}).modules == ("group:vision", "*.mlp")


def _attached(model: nn.Module) -> int:
    return sum(attached(model).values())


def test_attached_while_needed() -> None:
    """Hooks are there from the first user to the last, and a closed engine attaches no more."""
    model = Tower()
    engine = ModuleObservers(model, Settings())
    engine.acquire()
    engine.acquire()
    before = _attached(model)
    engine.release()
    assert before == engine.expected == _attached(model)
    engine.release()
    engine.release()
    assert _attached(model) == 0
    engine.acquire()
    engine.close()
    engine.acquire()
    assert _attached(model) == 0


def test_fused_layers_are_left_alone_after_a_compilation(telemetry: Telemetry) -> None:
    """Hooks keep torch from running an encoder layer as one operation, which has other last bits."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, rows = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 16)
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    with torch.no_grad():
        want = model(rows)
        telemetry.instrument(model, modules="all")
        got = model(rows)
    torch._dynamo.reset()
    assert torch.equal(got, want)
    (request,) = telemetry.forwards()
    assert "modules: fused" in str((request.attributes or {})[semconv.UNOBSERVED])


def test_copies_carry_nothing(nothing_compiled: None) -> None:
    """A copy or pickle taken while modules are observed computes by its own weights, and holds at most hooks that do nothing."""
    model = Tower()
    hooked: Any = model.layers[1]  # type: ignore[index]
    hooked.register_forward_hook(_unchanged)
    engine = ModuleObservers(model, Settings(modules="all"))
    engine.acquire()
    assert sum(attached(model).values()) == 4 and attached(model)["hooks"]
    twin: Any
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert attached(twin)["slot"] == 0
        hooks = [hook for one in twin.modules() for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values())]
        assert len(hooks) > 2
        assert b"inferspan" not in pickle.dumps(twin)
        assert all(hook is _unchanged or hook.__func__ is nullcontext.__exit__ for hook in hooks)
        assert torch.equal(twin.layers[0](torch.ones(1, 2)), model.layers[0](torch.ones(1, 2)))  # type: ignore[index,operator]
        with torch.no_grad():
            twin.layers[0][0].weight.zero_()
            twin.layers[0][0].bias.zero_()
        assert torch.equal(twin.layers[0](torch.ones(1, 2)), torch.zeros(1, 2))
    engine.close()


def _unchanged(*_: Any) -> None:
    """A hook of the user's."""


def test_structure_is_followed() -> None:
    """Replaced, added and removed layers, and a replaced list, are found before the next request."""
    model = Tower()
    engine = ModuleObservers(model, Settings())
    layers: Any = model.layers
    layers.append(nn.Sequential(nn.Linear(2, 2)))
    engine.prepare()
    assert engine.expected == 6
    old = model.layers
    model.layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2))])
    engine.prepare()
    assert engine.expected == 2
    engine.acquire()
    assert _attached(old) == 0 and _attached(model) == 2  # type: ignore[arg-type]
    engine.close()


def test_refresh_waits_for_running_calls() -> None:
    """While hooks are attached the selection stays, and what is attached comes off even if the structure has changed."""
    model = Tower()
    engine = ModuleObservers(model, Settings())
    engine.acquire()
    layers: Any = model.layers
    old = layers[0]
    layers[0] = nn.Identity()
    engine.prepare()
    engine.release()
    assert _attached(old) == _attached(model) == 0
