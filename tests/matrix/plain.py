"""Kinds of modules whose plain forward passes are requests, and ways to run them."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tests.cases import models

from . import wrappers
from .kinds import SIZES, noise

__all__ = ["MODULES", "PASSES", "Module", "Pass", "PassWay", "ready", "tensors"]

SMALL = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
EYES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8, "patch_size": 4}


@dataclass(frozen=True)
class Module:
    """A kind of module.

    Attributes:
        name: what the page calls it.
        make: makes it; always the same weights.
        given: makes the arguments of a pass: those by position and those by name.
        rows: rows of the batch.
    """

    name: str
    make: Callable[[], Any]
    given: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    rows: int = 2


@dataclass
class Pass:
    """One forward pass, ready to be made.

    Attributes:
        model: what was instrumented or will be.
        args: arguments by position.
        kwargs: arguments by name.
        callee: what is called, if not the model itself.
    """

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    callee: Any = None

    def run(self) -> Any:
        """Call it without gradients."""
        import torch

        with torch.no_grad():
            return self.callee(*self.args, **self.kwargs)


@dataclass(frozen=True)
class PassWay:
    """A way to run a forward pass.

    Attributes:
        name: what the page calls it.
        before: changes the pass before the model is instrumented.
        after: changes it afterwards.
        call: makes the call.
        needs: packages without which the test is skipped.
        around: what has to be there meanwhile.
    """

    name: str
    before: Callable[[Pass], None] = lambda one: None
    after: Callable[[Pass], None] = lambda one: None
    call: Callable[[Pass], Any] = Pass.run
    needs: tuple[str, ...] = ()
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


def ready(kind: Module, way: PassWay) -> Pass:
    """A new module and a pass that is ready to be made but for what comes after instrumenting; twice the same."""
    import torch

    torch.manual_seed(0)
    args, kwargs = kind.given()
    one = Pass(kind.make().eval(), args, kwargs)
    way.before(one)
    one.callee = one.model
    return one


# ---------------------------------------------------------------------------------------------------------------------------- kinds
def _made(name: str, config: str, **options: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config)(**options))


def _layers(make: Callable[[Any], Any]) -> Callable[[], Any]:
    def made() -> Any:
        import torch

        torch.manual_seed(0)
        return make(torch.nn)

    return made


def _clip() -> Any:
    import transformers

    text = {**SMALL, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=EYES, projection_dim=16))


def _detr() -> Any:
    import transformers

    eyes: Any = transformers.ResNetConfig
    kind: Any = transformers.DetrConfig
    backbone = eyes(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"])
    config = kind(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32, num_queries=5,
        encoder_layers=1, decoder_layers=1, encoder_ffn_dim=48, decoder_ffn_dim=48, encoder_attention_heads=2, decoder_attention_heads=2,
    )  # fmt: skip
    return transformers.DetrForObjectDetection(config)


def _wav2vec2() -> Any:
    return _made(
        "Wav2Vec2ForCTC", "Wav2Vec2Config", vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
    )  # fmt: skip


def _autoencoder() -> Any:
    from torch import nn

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU())
            self.decoder = nn.Sequential(nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1), nn.Sigmoid())

        def forward(self, pixels: Any) -> Any:
            code = self.encoder(pixels)
            return {"sample": self.decoder(code), "code": code}

    return Autoencoder()


def _ids(**more: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    ids = models.prompt(2, 6)
    return (), {"input_ids": ids, **{key: ids for key in more}}


def _positional(*shape: int) -> Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]:
    return lambda: ((noise(*shape),), {})


def _named(name: str, *shape: int) -> Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]:
    return lambda: ((), {name: noise(*shape)})


MODULES = {
    kind.name: kind
    for kind in (
        Module("nn.Linear", _layers(lambda nn: nn.Linear(8, 4)), _positional(2, 8)),
        Module("nn.Sequential", _layers(lambda nn: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))), _positional(2, 8)),
        Module("nn.Embedding", _layers(lambda nn: nn.Embedding(models.VOCABULARY, 8)), lambda: ((models.prompt(2, 6),), {})),
        Module("nn.LSTM", _layers(lambda nn: nn.LSTM(8, 8, num_layers=2, batch_first=True)), _positional(2, 5, 8)),
        Module("nn.LSTM (sequence first)", _layers(lambda nn: nn.LSTM(8, 8)), _positional(5, 2, 8)),
        Module("nn.GRU", _layers(lambda nn: nn.GRU(8, 8, batch_first=True)), _positional(2, 5, 8)),
        Module("nn.MultiheadAttention", _layers(lambda nn: nn.MultiheadAttention(8, 2, batch_first=True)), lambda: ((noise(2, 5, 8),) * 3, {})),
        Module(
            "nn.TransformerEncoder",
            _layers(lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)),
            _positional(2, 5, 8),
        ),
        Module(
            "nn.Transformer",
            _layers(lambda nn: nn.Transformer(8, 2, 1, 1, 16, batch_first=True)),
            lambda: ((noise(2, 5, 8), noise(2, 3, 8)), {}),
        ),
        Module("convolutions", _layers(lambda nn: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())), _positional(2, 3, 8, 8)),
        Module("autoencoder", _autoencoder, _positional(2, 3, 8, 8)),
        Module("ResNet", lambda: _made("ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"), _named("pixel_values", 2, 3, 32, 32)),
        Module("ViT", lambda: _made("ViTForImageClassification", "ViTConfig", **EYES), _named("pixel_values", 2, 3, 8, 8)),
        Module("DETR", _detr, _named("pixel_values", 2, 3, 64, 64)),
        Module("CLIP", _clip, lambda: ((), {"input_ids": models.prompt(2, 6), "pixel_values": noise(2, 3, 8, 8)})),
        Module("wav2vec 2", _wav2vec2, _named("input_values", 2, 400)),
        Module("BERT (classes)", lambda: _made("BertForSequenceClassification", "BertConfig", **SMALL), _ids),
        Module("BERT (features)", lambda: _made("BertModel", "BertConfig", **SMALL), lambda: ((models.prompt(2, 6),), {})),
        Module("Llama", models.llama, _ids),
        Module("T5", models.t5, lambda: _ids(decoder_input_ids=True)),
    )
}  # fmt: skip
"""By name."""


# ----------------------------------------------------------------------------------------------------------------------------- ways
def _trained(one: Pass) -> Any:
    """A step of training: dropout is on, and gradients flow back."""
    import numpy
    import torch

    one.model.train()
    torch.manual_seed(0)
    numpy.random.seed(0)  # wav2vec 2 draws its masks from it
    output = one.callee(*one.args, **one.kwargs)
    sum(tensor.float().sum() for tensor in tensors(output) if tensor.requires_grad).backward()
    return output


def tensors(output: Any) -> list[Any]:
    """The tensors of an output, in order."""
    import torch

    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [found for part in output for found in tensors(part)] if isinstance(output, list | tuple) else []


def _in_inference_mode(one: Pass) -> Any:
    import torch

    with torch.inference_mode():
        return one.callee(*one.args, **one.kwargs)


def _in_autocast(one: Pass) -> Any:
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        return one.run()


def _in_a_thread(one: Pass) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(one.run()))
    thread.start()
    thread.join()
    return found[0]


def _bfloat16(one: Pass) -> None:
    import torch

    def low(value: Any) -> Any:
        return value.to(torch.bfloat16) if value.is_floating_point() else value

    one.model.to(torch.bfloat16)
    one.args, one.kwargs = tuple(map(low, one.args)), {key: low(value) for key, value in one.kwargs.items()}


def _compiled_in_place(one: Pass) -> None:
    import torch

    torch._dynamo.reset()
    one.model.compile(backend="eager")


def _compiled_before(one: Pass) -> None:
    import torch

    torch._dynamo.reset()
    one.model = torch.compile(one.model, backend="eager")


def _compiled_after(one: Pass) -> None:
    import torch

    torch._dynamo.reset()
    one.callee = torch.compile(one.model, backend="eager")


def _compiled_parts(one: Pass) -> None:
    """The parts of the model one by one, as in regional compilation."""
    import torch

    torch._dynamo.reset()
    for part in one.model.children():
        part.compile(backend="eager")


def _compiled_forward(one: Pass) -> None:
    import torch

    torch._dynamo.reset()
    one.model.forward = torch.compile(one.model.forward, backend="eager")


def _in_a_compiled_function(one: Pass) -> None:
    import torch

    torch._dynamo.reset()
    model = one.model
    one.callee = torch.compile(lambda *args, **kwargs: model(*args, **kwargs), backend="eager")


def _traced_before(one: Pass) -> None:
    import torch

    with torch.no_grad():
        one.model = torch.jit.trace(one.model, one.args, strict=False)


def _traced_after(one: Pass) -> None:
    import torch

    with torch.no_grad():
        one.callee = torch.jit.trace(one.model, one.args, strict=False)


def _scripted_before(one: Pass) -> None:
    import torch

    one.model = torch.jit.script(one.model)


def _exported_before(one: Pass) -> None:
    import torch

    one.model = torch.export.export(one.model, one.args, one.kwargs).module()


def _exported_after(one: Pass) -> None:
    import torch

    one.callee = torch.export.export(one.model, one.args, one.kwargs).module()


def _copied(one: Pass) -> None:
    one.callee = copy.deepcopy(one.model)


def _pickled(one: Pass) -> None:
    one.callee = pickle.loads(pickle.dumps(one.model))


def _functional(one: Pass) -> Any:
    import torch

    weights = {**dict(one.model.named_parameters()), **dict(one.model.named_buffers())}
    with torch.no_grad():
        return torch.func.functional_call(one.model, weights, one.args, one.kwargs)


def _checkpointed(one: Pass) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    with torch.no_grad():
        return checkpoint(one.callee, *one.args, use_reentrant=False, **one.kwargs)


def _twice_inside(one: Pass) -> None:
    import torch

    inner = one.model

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner(*args, **kwargs)

    one.model = Outer().eval()


def _wrapped(wrap: Callable[[Any], Any]) -> Callable[[Pass], None]:
    def before(one: Pass) -> None:
        one.model = wrap(one.model)

    return before


def _wrapped_after(wrap: Callable[[Any], Any]) -> Callable[[Pass], None]:
    def after(one: Pass) -> None:
        one.callee = wrap(one.model)

    return after


def _data_parallel(model: Any) -> Any:
    import torch

    return torch.nn.DataParallel(model)


PASSES = {
    way.name: way
    for way in (
        PassWay("`model(...)`"),
        PassWay("training", call=_trained),
        PassWay("`inference_mode`", call=_in_inference_mode),
        PassWay("autocast to bfloat16", call=_in_autocast),
        PassWay("bfloat16 weights", before=_bfloat16),
        PassWay("in a thread", call=_in_a_thread),
        PassWay("inside another module", before=_twice_inside),
        PassWay("`functional_call`", call=_functional),
        PassWay("checkpointed", call=_checkpointed),
        PassWay("a deep copy of it", after=_copied),
        PassWay("a pickled copy of it", after=_pickled),
        PassWay("`model.compile()`", before=_compiled_in_place),
        PassWay("`torch.compile`, then instrumented", before=_compiled_before),
        PassWay("instrumented, then `torch.compile`", after=_compiled_after),
        PassWay("traced, then instrumented", before=_traced_before),
        PassWay("instrumented, then traced", after=_traced_after),
        PassWay("scripted, then instrumented", before=_scripted_before),
        PassWay("exported, then instrumented", before=_exported_before),
        PassWay("instrumented, then exported", after=_exported_after),
        PassWay("parts compiled", before=_compiled_parts),
        PassWay("`torch.compile` of `forward`", before=_compiled_forward),
        PassWay("called in a compiled function", after=_in_a_compiled_function),
        PassWay("LoRA (PEFT)", before=_wrapped(wrappers.lora), needs=("peft",)),
        PassWay("LoRA, merged", before=_wrapped(wrappers.merged), needs=("peft",)),
        PassWay("dynamic int8", before=_wrapped(wrappers.int8)),
        PassWay("int8 weights (torchao)", before=_wrapped(wrappers.torchao_int8), needs=("torchao",)),
        PassWay("offloaded to memory (accelerate)", before=_wrapped(wrappers.offloaded), needs=("accelerate",)),
        PassWay("offloaded to disk (accelerate)", before=_wrapped(wrappers.on_disk), needs=("accelerate",)),
        PassWay("DataParallel", before=_wrapped(_data_parallel)),
        PassWay("instrumented, then DataParallel", after=_wrapped_after(_data_parallel)),
        PassWay("DDP, one rank", before=_wrapped(wrappers.parallel), around=wrappers.distributed),
        PassWay("instrumented, then DDP", after=_wrapped_after(wrappers.parallel), around=wrappers.distributed),
        PassWay("FSDP2, one rank", before=_wrapped(wrappers.sharded), around=wrappers.distributed),
        PassWay("instrumented, then FSDP2", after=_wrapped_after(wrappers.sharded), around=wrappers.distributed),
    )
}
"""By name."""
