"""Models that are copied, pickled, sent to other processes, changed or unusual in structure, and their plain forward passes."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferspan import semconv
from tests.cases import models
from tests.cases.forward.nets import HIDDEN, LAYERS, Block, Net, hooks_on, names
from tests.cases.telemetry import Telemetry

COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


def _saved(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded: nn.Module = torch.load(buffer, weights_only=False)
    return loaded


@pytest.mark.parametrize("way", [*COPIES.values(), _saved], ids=[*COPIES, "torch.save"])
def test_copies_stand_alone(telemetry: Telemetry, way: Callable[[nn.Module], nn.Module]) -> None:
    """A copy computes with its own weights, emits nothing, and can be instrumented on its own while the original goes on."""
    model = models.llama()
    telemetry.instrument(model)
    ids = models.prompt()
    with torch.no_grad():
        model(ids)
        model.generate(ids, max_new_tokens=2)
        twin: Any = way(model)
        for parameter in twin.parameters():
            parameter.zero_()
        before = len(telemetry.spans())
        assert torch.count_nonzero(twin(ids).logits) == 0
        twin.generate(ids, max_new_tokens=2)
        assert len(telemetry.spans()) == before
        assert torch.count_nonzero(model(ids).logits) > 0
        handle = telemetry.instrument(twin)
        twin.generate(ids, max_new_tokens=2)
        handle.uninstrument()
    telemetry.check()
    assert len(telemetry.requests()) == 2


def test_copy_during_a_recorded_call(telemetry: Telemetry) -> None:
    """A copy made while our hooks are attached is silent and works."""
    twins: list[Any] = []
    telemetry.instrument(model := Net())
    model.layers[0].before = lambda: twins.append(copy.deepcopy(model)) if not twins else None
    model(hidden=HIDDEN)
    before = len(telemetry.spans())
    twins[0].layers[0].before = None
    twins[0](hidden=HIDDEN)
    telemetry.check()
    assert len(telemetry.spans()) == before


def test_shallow_copy(telemetry: Telemetry) -> None:
    """``copy.copy`` shares hooks with the original, and its calls do no harm."""
    telemetry.instrument(model := Net())
    twin = copy.copy(model)
    assert torch.equal(twin(hidden=HIDDEN), model(hidden=HIDDEN))
    telemetry.close()
    telemetry.check()
    assert hooks_on(twin) == hooks_on(model) == 0
    assert len(telemetry.forwards()) == 1


def _in_child(model: Any, queue: Any) -> None:
    with torch.no_grad():
        queue.put(float(model(models.prompt()).logits.sum()))


def test_spawned_process(telemetry: Telemetry) -> None:
    """An instrumented model is sent to a spawned process and computes the same there."""
    model = models.llama()
    telemetry.instrument(model)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_child, args=(model, queue))
    process.start()
    value = queue.get(timeout=120)
    process.join(60)
    with torch.no_grad():
        assert value == pytest.approx(float(model(models.prompt()).logits.sum()), rel=1e-4)
    assert process.exitcode == 0
    telemetry.check()


def test_replicas_in_threads(telemetry: Telemetry) -> None:
    """Replicas as DataParallel makes them share hook tables, run in other threads and are neither errors nor requests of the original."""
    telemetry.instrument(model := Net())

    def replicate(module: nn.Module) -> Any:
        replica: Any = module._replicate_for_data_parallel()
        replica._modules = {name: replicate(child) if child is not None else None for name, child in module._modules.items()}
        replica._parameters = dict(module._parameters)
        return replica

    results: list[Tensor] = []
    replicas = [replicate(model) for _ in range(3)]
    threads = [threading.Thread(target=lambda one=one: results.append(one(hidden=HIDDEN))) for one in replicas]
    for thread in threads:
        thread.start()
    want = model(hidden=HIDDEN)
    for thread in threads:
        thread.join()
    assert len(results) == 3 and all(torch.equal(result, want) for result in results)
    telemetry.close()
    telemetry.check()
    assert len(telemetry.forwards()) == 1


def test_replaced_submodules(telemetry: Telemetry) -> None:
    """A swapped layer is seen from the next call on, and the detached one keeps nothing of ours, not even alive."""
    handle = telemetry.instrument(model := Net())
    model(hidden=HIDDEN)
    old = model.layers[0]
    model.layers[0] = Block()
    model(hidden=HIDDEN)
    assert hooks_on(old) == 0
    reference = weakref.ref(old)
    del old
    assert reference() is None
    handle.uninstrument()
    telemetry.check()
    assert names(telemetry) == LAYERS * 2


def test_appended_and_removed_layers(telemetry: Telemetry) -> None:
    """A layer list that grows or shrinks is followed from the next call on."""
    telemetry.instrument(model := Net())
    model.layers.append(Block())
    model(hidden=HIDDEN)
    assert names(telemetry) == [*LAYERS, "layer 2", "layer 2 linear"]
    del model.layers[1:]
    model(hidden=HIDDEN)
    telemetry.check()
    assert names(telemetry) == [*LAYERS, "layer 2", "layer 2 linear", *LAYERS[:2]]


def test_layer_swapped_inside_a_forward(telemetry: Telemetry) -> None:
    """A layer that replaces another while the model runs is no error, and neither keeps a hook."""
    handle = telemetry.instrument(model := Net())
    old = model.layers[1]

    def swap() -> None:
        model.layers[1] = Block()

    model.layers[0].before = swap
    model(hidden=HIDDEN)
    handle.uninstrument()
    telemetry.check()
    assert hooks_on(model) == hooks_on(old) == 0


def test_lazy_parametrized_and_shared_modules(telemetry: Telemetry) -> None:
    """Lazy layers, weight norm and one layer under two names work, and each object is hooked once."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.LazyLinear(4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), shared, shared)
    telemetry.instrument(model, modules="all")
    model(HIDDEN)
    model(HIDDEN)
    telemetry.check()
    assert len([name for name in names(telemetry) if name.startswith("layer 2")]) == 4
    assert not [name for name in names(telemetry) if name.startswith("layer 3")]


def test_scripted_child_and_scripted_root(telemetry: Telemetry) -> None:
    """Scripted modules take no hooks: they are skipped; the call of a scripted root is seen, its modules are not."""
    scripted = _script(nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), scripted)
    telemetry.instrument(model, modules="all")
    model(HIDDEN)
    telemetry.check()
    assert names(telemetry) == ["layer 0"]
    handle = telemetry.instrument(scripted)
    scripted(HIDDEN)
    handle.uninstrument()
    telemetry.check()


def _script(module: nn.Module) -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted: nn.Module = torch.jit.script(module)
    return scripted


def test_meta_and_quantized_modules(telemetry: Telemetry) -> None:
    """Weights that are on meta or packed are never read: shapes and dtypes come from what flows."""
    import warnings

    meta = nn.Sequential(nn.Linear(4, 4, device="meta"))
    telemetry.instrument(meta, modules="all")
    assert meta(torch.ones(2, 4, device="meta")).is_meta
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    telemetry.instrument(packed, modules="all", output_stats=True)
    packed(HIDDEN)
    telemetry.check()
    assert [(span.attributes or {}).get(semconv.OUTPUT_DTYPES) for span in telemetry.modules()] == [("float32",)] * 2
