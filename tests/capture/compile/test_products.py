"""What torch makes of an instrumented model, by scripting, tracing, exporting, copying and saving, is what it makes of a bare one."""

from __future__ import annotations

import copy
import io
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from torch import Tensor, nn

from inferspan import semconv
from tests.cases.telemetry import Telemetry

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]
ROWS = torch.ones(3, 4)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """In memory; each test compiles from nothing."""
    dynamo.reset()
    made = Telemetry()
    yield made
    made.close()
    dynamo.reset()


class Net(nn.Module):
    """Two layers, and an activation that may call something first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.rest(self.first(hidden))
        return output


def hook(self, input: tuple[Tensor]) -> None:  # type: ignore[no-untyped-def]
    """As TorchScript wants one."""


# ------------------------------------------------------------------------------------------------------------------------- states
def plain(model: Net) -> None:
    """Nothing was compiled: an observer is in the slot."""


def hooked(model: Net) -> None:
    """So it is with a hook of the program's."""
    model.register_forward_pre_hook(hook)


def after_a_compilation(model: Net) -> None:
    """Hooks replace the observer, at least below the root."""
    torch.compile(lambda value: value + 1, backend="eager")(ROWS)


def hooked_after_a_compilation(model: Net) -> None:
    """Hooks replace the observer on the root as well."""
    hooked(model)
    after_a_compilation(model)


def compiled_in_place(model: Net) -> None:
    """The compiled call in the slot is wrapped."""
    model.compile(backend="eager")


STATES = [plain, hooked, after_a_compilation, hooked_after_a_compilation, compiled_in_place]


# ----------------------------------------------------------------------------------------------------------------------- products
def _names(graph: object) -> str:
    """Without places in files, and the numbers by which torch.jit tells classes of one name."""
    return re.sub(r"/\S+|___torch_mangle_\d+\.", "", str(graph))


def scripted(model: nn.Module) -> Any:
    """The graph of a scripted module, and its results after it was saved and loaded."""
    module, buffer = torch.jit.script(model), io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return _names(module.code), module(ROWS).tolist(), torch.jit.load(buffer)(ROWS).tolist()


def scripted_inside(model: nn.Module) -> Any:
    """The same of a module around it."""
    return _names(torch.jit.script(nn.Sequential(model)).code)


def traced(model: nn.Module) -> Any:
    """The graph of a trace."""
    module = torch.jit.trace(model, ROWS)
    return _names(module.graph), module(ROWS).tolist()


def exported(model: nn.Module) -> Any:
    """The graph of a program."""
    program = torch.export.export(model, (ROWS,))
    return _names(program.graph), str(program.graph_signature), program.module()(ROWS).tolist()


def exported_strictly(model: nn.Module) -> Any:
    """The same, by Dynamo."""
    return _names(torch.export.export(model, (ROWS,), strict=True).graph)


def symbolic(model: nn.Module) -> Any:
    """The code of an FX graph, and its results."""
    module = torch.fx.symbolic_trace(model)
    return module.code, module(ROWS).tolist()


def copied(model: nn.Module) -> Any:
    """The results and the attributes of a copy."""
    twin = copy.deepcopy(model)
    return sorted(twin.__dict__), twin(ROWS).tolist()


def pickled(model: nn.Module) -> Any:
    """The same of a pickle, which does not need this package to be loaded."""
    data = pickle.dumps(model)
    twin = pickle.loads(data)
    return sorted(twin.__dict__), twin(ROWS).tolist(), b"inferspan" in data


def saved(model: nn.Module) -> Any:
    """The same of ``torch.save``."""
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)(ROWS).tolist(), b"inferspan" in buffer.getvalue()


PRODUCTS = [scripted, scripted_inside, traced, exported, exported_strictly, symbolic, copied, pickled, saved]


def _outcome(product: Callable[[nn.Module], Any], model: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return product(model)
        except Exception as error:  # torch may refuse, in the same words
            return type(error).__name__, _names(error)


def _model(state: Callable[[Net], None]) -> Net:
    torch.manual_seed(0)
    model = Net().eval()
    state(model)
    return model


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("state", STATES)
def test_is_that_of_a_bare_model(telemetry: Telemetry, state: Callable[[Net], None], product: Callable[[nn.Module], Any]) -> None:
    """Whatever stands on the model then, and it is back afterwards."""
    want = _outcome(product, _model(state))
    model = _model(state)
    telemetry.instrument(model)
    got = _outcome(product, model)
    before = len(telemetry.forwards())
    with torch.no_grad():
        model(ROWS)
    telemetry.check()
    assert got == want
    assert len(telemetry.forwards()) == before + 1


@pytest.mark.parametrize("product", [scripted, traced, exported_strictly, symbolic])
@pytest.mark.parametrize("state", [plain, after_a_compilation])
def test_inside_a_recorded_pass(telemetry: Telemetry, state: Callable[[Net], None], product: Callable[[nn.Module], Any]) -> None:
    """The same while the modules are observed, and the pass is recorded as one."""
    found: list[Any] = []
    for observed in (False, True):
        model = _model(state)
        activation: Any = model.rest[0]

        def looking(hidden: Tensor, model: nn.Module = model, activation: Any = activation) -> Tensor:
            # Once, and not by what looks at the model.
            del activation.forward
            found.append(_outcome(product, model))
            return torch.relu(hidden)

        activation.forward = looking
        if observed:
            telemetry.instrument(model, every_step=True)
        with torch.no_grad():
            model(ROWS)
    telemetry.check()
    assert found[1] == found[0]
    assert len(telemetry.forwards()) == 1


@pytest.mark.parametrize("state", STATES[:4])
def test_a_hook_of_the_programs_below_the_root(telemetry: Telemetry, state: Callable[[Net], None]) -> None:
    """Its module is not observed after a compilation in the process, and the request says so."""
    model = _model(state)
    model.first.register_forward_pre_hook(hook)
    telemetry.instrument(model, modules="all")
    with torch.no_grad():
        model(ROWS)
    telemetry.check()
    seen = {(span.attributes or {})[semconv.MODULE_NAME] for span in telemetry.modules()}
    said = str((telemetry.forwards()[0].attributes or {}).get(semconv.UNOBSERVED))
    assert "rest.0" in seen
    assert ("first" in seen) is ("modules: with your hooks" not in said)
    assert ("first" in seen) is (state in (plain, hooked))
