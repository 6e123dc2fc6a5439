"""Edges of models whose data flow is known: by identity of tensors, and through the operations between modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases import models as real
from tests.cases.telemetry import Telemetry

from .models import Dicts, InPlace, Shared, Stack, TwoWays, UNet, Views, edges

X = torch.arange(12.0).view(3, 4)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """After a compilation in the process operations are not followed."""
    torch._dynamo.reset()


SEQUENTIAL = {"input? -> 0", "0 -> 1", "1 -> 2", "2 -> result"}
CASES: list[Any] = [
    ("sequential", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (X,), SEQUENTIAL, SEQUENTIAL),
    (
        "residual", Stack, (X,),
        {
            "pixels? -> embed", "embed -> blocks.0.norm", "blocks.0.norm -> blocks.0.linear", "blocks.0 -> blocks.1.norm",
            "blocks.1.norm -> blocks.1.linear", "blocks.1 -> head", "head -> result",
        },
        {
            "pixels? -> embed", "embed -> blocks.0.norm", "blocks.0.norm -> blocks.0.linear",
            "embed -> (blocks.0) [add]!", "blocks.0.linear -> (blocks.0) [add]",
            "blocks.0 -> blocks.1.norm", "blocks.1.norm -> blocks.1.linear",
            "blocks.0 -> (blocks.1) [add]!", "blocks.1.linear -> (blocks.1) [add]", "blocks.1 -> head", "head -> result",
        },
    ),
    (
        "u-net", UNet, (X,),
        {
            "image? -> down1", "down1 -> down2", "down2 -> middle", "middle -> up2", "down2 -> up2!", "up2 -> up1", "down1 -> up1!",
            "up1 -> result",
        },
        {
            "image? -> down1", "down1 -> down2", "down2 -> middle", "middle -> up2.conv [cat]", "down2 -> up2.conv [cat]!",
            "up2 -> up1.conv [cat]", "down1 -> up1.conv [cat]!", "up1 -> result",
        },
    ),
    (
        "shared encoder", Shared, (X, X + 1),
        {"left? -> encoder", "right? -> encoder#2", "encoder -> compare", "encoder#2 -> compare", "compare -> result"},
        {"left? -> encoder", "right? -> encoder#2", "encoder -> compare", "encoder#2 -> compare", "compare -> result"},
    ),
    (
        "two ways", TwoWays, (X,),
        {"hidden? -> norm", "norm -> both", "both -> result", "both -> result [view]"},
        {
            "hidden? -> norm", "norm -> both.inner [add]", "both.inner -> (both) [mul]", "norm -> (both) [mul]!",
            "both -> result", "both -> result [add]", "both -> result [getitem]",
        },
    ),
    ("mappings", Dicts, ({"hidden": X},), {"batch? -> parts", "parts -> sum", "sum -> result"}, None),
    (
        "in place", InPlace, (X,),
        {"hidden? -> one", "one -> relu", "hidden? -> two", "two -> three [in place]", "three -> result"},
        {"hidden? -> one", "one -> relu", "hidden? -> two", "two -> three [add_]", "relu -> three [add_]", "three -> result"},
    ),
    (
        "views", Views, (X,),
        {"hidden? -> fused", "fused -> query [view]", "out -> result"},
        {"hidden? -> fused", "fused -> query [chunk]", "query -> out [mul add]", "fused -> out [chunk mul add]!", "out -> result"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("setting", ["modules", "operations"])
@pytest.mark.parametrize(("make", "inputs", "direct", "through"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_edges_of_known_models(
    telemetry: Telemetry, make: Any, inputs: Any, direct: set[str], through: set[str] | None, setting: str
) -> None:
    """They are those of the model's source, with skip connections."""
    torch.manual_seed(0)
    model = make().eval()
    handle = telemetry.instrument(model, modules="all", data_flow=setting)
    with torch.no_grad():
        model(*inputs)
    assert edges(handle.data_flow()) == (direct if setting == "modules" or through is None else through)
    telemetry.check()


def test_levels_of_modules(telemetry: Telemetry) -> None:
    """A module that contains others takes and returns tensors as well; such edges are told from those inside."""
    model = Stack(1)
    handle = telemetry.instrument(model, modules="all", data_flow="modules")
    model(X)
    flow = handle.data_flow()
    assert edges(flow, final=False) - edges(flow) == {"embed -> blocks.0"}
    (outer,) = [edge for edge in flow if (edge.producer, edge.consumer) == ("embed", "blocks.0")]
    (inner,) = [edge for edge in flow if (edge.producer, edge.consumer) == ("embed", "blocks.0.norm")]
    assert (outer.final, outer.inner) == (False, False)
    assert (inner.final, inner.inner) == (True, True)


def test_facts_of_an_edge(telemetry: Telemetry) -> None:
    """Shape, dtype and bytes of what arrives, and how many use it."""
    model = UNet().to(torch.bfloat16)
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    with torch.no_grad():
        model(X.bfloat16())
    (edge,) = [one for one in handle.data_flow() if one.producer == "down2" and one.consumer == "up2.conv"]
    assert (edge.shape, edge.dtype, edge.bytes, edge.via, edge.consumers) == ((3, 8), "bfloat16", 48, ("cat",), 2)


def test_inputs_by_name_and_containers(telemetry: Telemetry) -> None:
    """Arguments have their names; several tensors of one are numbered; an input with several consumers shows them."""

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, batch: dict[str, Tensor], *, mask: Tensor) -> Tensor:
            result: Tensor = self.one(batch["a"]) + self.two(batch["b"]) + self.one(mask) + self.two(mask)
            return result

    model = Takes()
    handle = telemetry.instrument(model, modules="all", data_flow="modules")
    model({"a": X, "b": X + 1}, mask=X * 2)
    flow = handle.data_flow()
    assert edges(flow) == {"batch[0]? -> one", "batch[1]? -> two", "mask? -> one#2", "mask? -> two#2"}
    assert {edge.consumers for edge in flow if edge.producer == "mask"} == {2}
    assert flow.left_out == {}


def test_a_freed_tensor_is_no_source(telemetry: Telemetry) -> None:
    """Another tensor at the same address, of the same identity, has nothing to do with it."""

    class Frees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, hidden: Tensor) -> Tensor:
            for _ in range(50):
                self.one(hidden)
                result: Tensor = self.two(torch.ones(3, 4))
            return result

    model = Frees()
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    with torch.no_grad():
        model(X)
    assert {edge.producer for edge in handle.data_flow() if edge.consumer == "two"} == set()
    assert handle.data_flow().left_out == {"inputs of unknown origin": 50}


def test_writes_are_followed_through_views(telemetry: Telemetry) -> None:
    """A buffer that outputs of modules are written to depends on them, also where a view of it is read."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, hidden: Tensor) -> Tensor:
            buffer = torch.zeros(6, 4)
            below = buffer[3:]
            buffer[:3] = self.one(hidden)
            below.copy_(self.two(hidden))
            result: Tensor = self.three(buffer[2:5])
            return result

    model = Writes()
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    with torch.no_grad():
        model(X)
    found = {edge.producer: edge.via for edge in handle.data_flow() if edge.consumer == "three"}
    assert found == {"one": ("setitem", "getitem"), "two": ("copy_", "getitem")}


def test_generation_with_a_cache(telemetry: Telemetry) -> None:
    """Keys and values of the prompt reach the attention of the next step from an earlier pass."""
    model = real.llama()
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    model.generate(real.prompt(), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    prefill, decode = edges(handle.data_flow(step=0)), handle.data_flow(step=1)
    layer = "model.layers.0"
    assert {edge for edge in prefill if "~" in edge} == set()
    assert {
        f"{layer}.input_layernorm -> {layer}.self_attn.q_proj", "model.embed_tokens -> model.layers.0.input_layernorm",
        "input_ids? -> model.embed_tokens", f"{layer}.mlp.up_proj -> {layer}.mlp.down_proj [mul]",
        f"model.embed_tokens -> {layer}.post_attention_layernorm [add]!", f"{layer}.self_attn -> {layer}.post_attention_layernorm [add]",
        "lm_head -> result",
    } <= prefill  # fmt: skip
    earlier = {edge.producer for edge in decode if edge.origin == "earlier" and edge.consumer == f"{layer}.self_attn.o_proj"}
    assert {f"{layer}.self_attn.k_proj", f"{layer}.self_attn.v_proj"} <= earlier
    assert decode.step == 1
    telemetry.check()


def test_stages_of_a_model(telemetry: Telemetry) -> None:
    """A stage, such as the vision encoder, is a module as others are."""
    model = real.llava()
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    inputs = {"input_ids": torch.tensor([[1, *[model.config.image_token_id] * _image_tokens(model), 2, 3]]), "pixel_values": _image(model)}
    with torch.no_grad():
        model(**inputs)
    flow = handle.data_flow()
    assert {edge.consumer for edge in flow if edge.producer == "pixel_values"} >= {"model.vision_tower"}
    assert {"model.vision_tower", "model.multi_modal_projector"} <= set(flow.modules)
    telemetry.check()


def _image(model: Any) -> Tensor:
    size = model.config.vision_config.image_size
    return torch.ones(1, 3, size, size)


def _image_tokens(model: Any) -> int:
    return int(model.config.vision_config.image_size // model.config.vision_config.patch_size) ** 2


def test_layers_only(telemetry: Telemetry) -> None:
    """With the layers as the modules of interest, what is between them is operations."""
    model = real.llama()
    handle = telemetry.instrument(model, modules=["model.layers.*.mlp", "model.layers.*.self_attn"], data_flow="operations")
    with torch.no_grad():
        model(real.prompt())
    found = {(edge.producer, edge.consumer): edge.skip for edge in handle.data_flow() if edge.origin == "module" and edge.consumer}
    layers = range(model.config.num_hidden_layers)
    assert all((f"model.layers.{n}.self_attn", f"model.layers.{n}.mlp") in found for n in layers)
    assert all((f"model.layers.{n}.mlp", f"model.layers.{n + 1}.self_attn") in found for n in layers[:-1])
    assert found["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert not found["model.layers.0.mlp", "model.layers.1.self_attn"]


def test_encoder_and_decoder(telemetry: Telemetry) -> None:
    """What the encoder returned in its own pass reaches the cross-attention of the decoder."""
    model = real.t5()
    handle = telemetry.instrument(model, modules="all", data_flow="operations")
    model.generate(real.prompt(), max_new_tokens=2, do_sample=False)
    flow = handle.data_flow(step=0)
    into = {edge.producer for edge in flow if edge.consumer.endswith("EncDecAttention.k")}
    assert into == {"encoder"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*quantized:UserWarning")
def test_tensors_of_odd_kinds(telemetry: Telemetry) -> None:
    """Nested, sparse, meta and integer tensors are followed by identity; one without a shape has none."""

    class Odd(nn.Module):
        def __init__(self, make: Any) -> None:
            super().__init__()
            self.make, self.use = make, _Use()
            self.one = _Make(make)

        def forward(self, hidden: Tensor) -> Tensor:
            result: Tensor = self.use(self.one(hidden))
            return result

    kinds: dict[str, Any] = {
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "sparse": lambda: torch.eye(3).to_sparse(),
        "meta": lambda: torch.ones(2, 2, device="meta"),
        "integer": lambda: torch.ones(2, 2, dtype=torch.int8),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    }
    for kind, make in kinds.items():
        for setting in ("modules", "operations"):
            model = Odd(make)
            handle = telemetry.instrument(model, modules="all", data_flow=setting)
            model(X)
            found = {(edge.producer, edge.consumer): edge for edge in handle.data_flow()}
            assert ("one", "use") in found, kind
            if kind in ("nested", "jagged"):
                assert (found["one", "use"].shape, found["one", "use"].bytes) == (None, None), kind
            handle.uninstrument()
    telemetry.check()


class _Make(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self._make = make

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self._make()
        return found


class _Use(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return torch.ones(2)


def test_bounds(telemetry: Telemetry) -> None:
    """Tensors of one call and edges of a pass are bounded, and what is left out is counted."""

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make, self.use = _Hundred(), _Use()

        def forward(self, hidden: Tensor) -> Tensor:
            found = self.make(hidden)
            for _ in range(100):
                result: Tensor = self.use(found)
            return result

    model = Many()
    handle = telemetry.instrument(model, modules="all", data_flow="modules")
    model(X)
    flow = handle.data_flow()
    assert len(flow) == 4_096
    assert flow.left_out["tensors of a call"] > 0
    assert flow.left_out["edges"] == 100 * 64 + 1 - 4_096 + 1
    (forward,) = telemetry.forwards()
    attributes: dict[str, Any] = dict(forward.attributes or {})
    assert attributes["inferspan.data_flow.edges"] == 4_096
    assert attributes["inferspan.data_flow.left_out"] >= flow.left_out["edges"]


class _Hundred(nn.Module):
    def forward(self, hidden: Tensor) -> list[Tensor]:
        return [hidden + number for number in range(100)]
