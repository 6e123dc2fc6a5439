"""Methods besides ``forward`` and ``generate`` whose calls are requests."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections import ChainMap, UserDict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry

HIDDEN = torch.ones(2, 4)


class Autoencoder(nn.Module):
    """Two halves that are called on their own, and a known method."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(2, 4)

    def encode(self, hidden: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.first(hidden) * scale

    def decode(self, latent: Tensor) -> Tensor:
        return self.second(latent)

    def get_image_features(self, hidden: Tensor) -> Tensor:
        return self(hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decode(self.encode(hidden))


def _names(telemetry: Telemetry) -> list[str]:
    return [span.name for span in telemetry.roots()]


def test_named_methods_are_requests(telemetry: Telemetry) -> None:
    """A span with the method's name, its modules below it, and a value of the metric of plain passes."""
    handle = telemetry.instrument(model := Autoencoder(), methods=["encode", "decode"])
    model.decode(model.encode(HIDDEN, scale=2.0))
    telemetry.check()
    assert _names(telemetry) == ["encode Autoencoder", "decode Autoencoder"]
    assert [(span.attributes or {})[semconv.METHOD] for span in telemetry.roots()] == ["encode", "decode"]
    assert [span.name for span in telemetry.modules()] == ["first", "second"]
    assert handle.summary().forwards == 2


def test_inside_a_forward_pass_they_are_part_of_it(telemetry: Telemetry) -> None:
    """A pass that calls them is one request."""
    telemetry.instrument(model := Autoencoder(), methods=["encode", "decode"])
    model(HIDDEN)
    telemetry.check()
    assert _names(telemetry) == ["forward Autoencoder"]


def test_a_forward_pass_inside_is_detail(telemetry: Telemetry) -> None:
    """A known method is observed without being named, and a pass of the model inside it is a module call."""
    telemetry.instrument(model := Autoencoder())
    model.get_image_features(HIDDEN)
    telemetry.check()
    assert _names(telemetry) == ["get_image_features Autoencoder"]
    assert len(telemetry.forwards()) == 0


def test_the_class_is_left_as_it_was(telemetry: Telemetry) -> None:
    """Signatures stay, and everything comes off."""
    before, signature = Autoencoder.__dict__["encode"], inspect.signature(Autoencoder.encode)
    handle = telemetry.instrument(model := Autoencoder(), methods=["encode"])
    assert inspect.signature(model.encode) == inspect.signature(Autoencoder().encode)
    assert inspect.signature(Autoencoder.encode) == signature
    handle.uninstrument()
    assert Autoencoder.__dict__["encode"] is before


@pytest.mark.parametrize("name", ["encoode", "forward", "first weight"])
def test_wrong_name_as_an_argument(telemetry: Telemetry, name: str) -> None:
    """It raises and attaches nothing."""
    model = Autoencoder()
    with pytest.raises(inferspan.SettingsError, match="methods"):
        telemetry.instrument(model, methods=[name])
    assert "_compiled_call_impl" not in vars(model)


def test_wrong_name_in_the_environment(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one warning, and the known methods are observed."""
    monkeypatch.setenv("INFERSPAN_METHODS", "encoode")
    with caplog.at_level(logging.WARNING, "inferspan"):
        telemetry.instrument(model := Autoencoder())
    model.get_image_features(HIDDEN)
    assert [record.message.split()[0] for record in caplog.records if "encoode" in record.message] == ["INFERSPAN_METHODS"]
    assert _names(telemetry) == ["get_image_features Autoencoder"]


def test_a_scripted_model(telemetry: Telemetry) -> None:
    """Its calls are requests, and its modules are said to be unseen."""
    model = torch.jit.trace(nn.Linear(4, 4), HIDDEN)
    telemetry.instrument(model)
    model(HIDDEN)
    telemetry.check()
    assert [(span.attributes or {}).get(semconv.UNOBSERVED) for span in telemetry.forwards()] == ["modules: scripted"]


def test_shapes_inside_other_containers(telemetry: Telemetry) -> None:
    """A mapping like that of a tokenizer is an input like a dict, and tensors deep in an output are found."""

    @dataclasses.dataclass
    class Boxes:
        corners: Tensor

    class Detector(nn.Module):
        def forward(self, batch: UserDict[str, Tensor]) -> list[dict[str, Boxes]]:
            return [{"found": Boxes(batch["pixels"].flatten())}]

    telemetry.instrument(model := Detector())
    model(UserDict(pixels=HIDDEN))
    (span,) = telemetry.forwards()
    assert (span.attributes or {})[semconv.INPUT_SHAPES] == ("2x4",)
    assert (span.attributes or {})[semconv.OUTPUT_SHAPES] == ("8",)


class _Batch(Mapping[str, Tensor]):
    """A mapping of a program's own."""

    def __init__(self, pixels: Tensor) -> None:
        self._held = {"pixels": pixels}

    def __getitem__(self, key: str) -> Tensor:
        return self._held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


@dataclasses.dataclass(slots=True)
class _Slotted:
    pixels: Tensor


CONTAINERS: dict[str, Callable[[Tensor], Any]] = {
    "a mapping of its own": _Batch,
    "ChainMap": lambda pixels: ChainMap({"other": None}, {"pixels": pixels}),
    "read-only view": lambda pixels: MappingProxyType({"pixels": pixels}),
    "namespace": lambda pixels: SimpleNamespace(pixels=pixels),
    "dataclass with slots": _Slotted,
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_shapes_of_every_kind_of_mapping(telemetry: Telemetry, kind: str) -> None:
    """Tensors in a mapping that is no dict, or in a record, are inputs and outputs like those in a dict."""

    class Passing(nn.Module):
        def forward(self, batch: Any) -> Any:
            return batch

    telemetry.instrument(model := Passing())
    model(CONTAINERS[kind](HIDDEN))
    (span,) = telemetry.forwards()
    assert (span.attributes or {}).get(semconv.INPUT_SHAPES) == ("2x4",)
    assert (span.attributes or {}).get(semconv.OUTPUT_SHAPES) == ("2x4",)
