"""What programs wrap models in: adapters, quantization, offloading, and the parallel wrappers of torch in one process."""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["bitsandbytes_int8", "distributed", "int8", "lora", "merged", "offloaded", "on_disk", "parallel", "sharded", "torchao_int8"]


def lora(model: Any) -> Any:
    """A model with a LoRA adapter that changes its outputs, on every linear layer of it but the head."""
    import peft
    import torch

    names = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    heads = {name.rpartition(".")[2] for name, module in model.named_modules() if module is head}
    torch.manual_seed(0)
    made: Any = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=sorted(names - heads), init_lora_weights=False))
    return made.eval()


def merged(model: Any) -> Any:
    """The same, with the adapter merged into the weights."""
    return lora(model).merge_and_unload().eval()


def int8(model: Any) -> Any:
    """Linear layers in dynamic int8, by torch itself."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def torchao_int8(model: Any) -> Any:
    """Linear layers with int8 weights, by torchao."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # type: ignore[import-not-found, unused-ignore]

    quantize_(model, Int8WeightOnlyConfig())
    return model


def _replaced(model: Any, make: Callable[[Any], Any]) -> Any:
    """The model with others in the place of its linear layers, the head excepted, as transformers puts those of bitsandbytes."""
    import torch

    head = getattr(model, "get_output_embeddings", lambda: None)()
    for name, layer in [*model.named_modules()]:
        if type(layer) is torch.nn.Linear and layer is not head:
            above, _, last = name.rpartition(".")
            setattr(model.get_submodule(above), last, make(layer))
    return model.to("cpu").eval()


def bitsandbytes_int8(model: Any) -> Any:
    """Linear layers in LLM.int8, by bitsandbytes."""
    import bitsandbytes  # type: ignore[import-not-found, unused-ignore]

    def make(layer: Any) -> Any:
        made: Any = bitsandbytes.nn.Linear8bitLt(layer.in_features, layer.out_features, layer.bias is not None, has_fp16_weights=False)
        made.weight = bitsandbytes.nn.Int8Params(layer.weight.data.clone(), requires_grad=False, has_fp16_weights=False)
        made.bias = layer.bias
        return made

    return _replaced(model, make)


def offloaded(model: Any) -> Any:
    """Weights in host memory that are moved in for each call of a layer, by accelerate."""
    import accelerate  # type: ignore[import-untyped]

    return accelerate.cpu_offload(model, execution_device="cpu")


def on_disk(model: Any) -> Any:
    """Weights on the disk, likewise."""
    import accelerate

    folder = tempfile.mkdtemp()
    weakref.finalize(model, shutil.rmtree, folder, True)
    return accelerate.disk_offload(model, folder, execution_device="cpu")


@contextmanager
def distributed() -> Iterator[None]:
    """A process group of this process alone."""
    import torch.distributed as dist

    store: Any = dist.HashStore  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def parallel(model: Any) -> Any:
    """DDP around it; a process group is there."""
    import torch

    made: Any = torch.nn.parallel.DistributedDataParallel(model)
    return made.eval()


def sharded(model: Any) -> Any:
    """FSDP2 on it; a process group is there."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model, mesh=mesh)
    return model
