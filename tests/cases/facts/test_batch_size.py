"""The rows of a plain forward pass: right for every layout that is known, absent for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry


class Tagger(nn.Module):
    """The user's own module around a recurrent layer."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 3, batch_first=batch_first)

    def forward(self, hidden: Tensor) -> Any:
        return self.lstm(hidden)[0]


class Words(nn.Module):
    """Token ids ahead of a sequence-first layer, under a name that transformers uses otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(30, 6), nn.GRU(6, 3)

    def forward(self, input_ids: Tensor) -> Any:
        return self.rnn(self.words(input_ids))[0]


class Taking(nn.Module):
    """Takes whatever it is given, without a layer that would say more."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, first: Any, second: Any = None, position_ids: Any = None, **rest: Any) -> None:
        return None


class Pass(NamedTuple):
    """A forward pass, and how many rows it has."""

    model: Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int | None


SEQUENCE, ROWS, ONE = torch.randn(9, 4, 6), torch.randn(4, 9, 6), torch.randn(9, 6)
IDS, POSITIONS = torch.randint(3, 30, (5, 7)), torch.arange(7)[None]
PACKED = nn.utils.rnn.pack_padded_sequence(SEQUENCE, torch.tensor([9, 8, 3, 2]))
PASSES = {
    "LSTM": Pass(lambda: nn.LSTM(6, 3), (SEQUENCE,), {}, 4),
    "LSTM by keyword": Pass(lambda: nn.LSTM(6, 3), (), {"input": SEQUENCE}, 4),
    "LSTM of a packed sequence": Pass(lambda: nn.LSTM(6, 3), (PACKED,), {}, 4),
    "LSTM without a batch": Pass(lambda: nn.LSTM(6, 3), (ONE,), {}, None),
    "GRU, batch first": Pass(lambda: nn.GRU(6, 3, batch_first=True), (ROWS,), {}, 4),
    "GRU, batch first, without a batch": Pass(lambda: nn.GRU(6, 3, batch_first=True), (ONE,), {}, None),
    "LSTMCell": Pass(lambda: nn.LSTMCell(6, 3), (ONE,), {}, 9),
    "encoder layer": Pass(lambda: nn.TransformerEncoderLayer(6, 2, 8), (SEQUENCE,), {}, 4),
    "encoder": Pass(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1), (ROWS,), {}, 4),
    "encoder, sequence first": Pass(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8), 1), (SEQUENCE,), {}, 4),
    "decoder layer": Pass(lambda: nn.TransformerDecoderLayer(6, 2, 8), (SEQUENCE, SEQUENCE), {}, 4),
    "Transformer": Pass(lambda: nn.Transformer(6, 2, 1, 1, 8), (SEQUENCE, torch.randn(3, 4, 6)), {}, 4),
    "Transformer by keyword": Pass(lambda: nn.Transformer(6, 2, 1, 1, 8), (), {"tgt": torch.randn(3, 4, 6), "src": SEQUENCE}, 4),
    "attention without a batch": Pass(lambda: nn.MultiheadAttention(6, 2), (ONE, ONE, ONE), {}, None),
    "recurrent layer in a Sequential": Pass(lambda: nn.Sequential(nn.GRU(6, 3)), (SEQUENCE,), {}, 4),
    "module with a sequence-first layer": Pass(lambda: Tagger(batch_first=False), (SEQUENCE,), {}, None),
    "module with a batch-first layer": Pass(lambda: Tagger(batch_first=True), (ROWS,), {}, 4),
    "the same without a batch": Pass(lambda: Tagger(batch_first=True), (ONE,), {}, None),
    "ids ahead of a sequence-first layer": Pass(Words, (IDS,), {}, None),
    "Conv2d": Pass(lambda: nn.Conv2d(3, 2, 1), (torch.randn(2, 3, 4, 4),), {}, 2),
    "Conv2d of one image": Pass(lambda: nn.Conv2d(3, 2, 1), (torch.randn(3, 4, 4),), {}, None),
    "convolutions of one image": Pass(lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(3, 2, 1)), (torch.randn(3, 4, 4),), {}, None),
    "convolutions": Pass(lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(3, 2, 1)), (torch.randn(2, 3, 4, 4),), {}, 2),
    "Linear": Pass(lambda: nn.Linear(6, 2), (ONE,), {}, 9),
    "Linear of one row": Pass(lambda: nn.Linear(6, 2), (torch.randn(6),), {}, None),
    "two inputs of one length": Pass(Taking, (torch.ones(3, 2), torch.ones(3, 5)), {}, 3),
    "two inputs of two lengths": Pass(Taking, (torch.ones(3, 2), torch.ones(4, 5)), {}, None),
    "three axes of which nothing is known": Pass(Taking, (SEQUENCE,), {}, None),
    "one input of which nothing is known": Pass(Taking, (torch.ones(3, 2), SEQUENCE), {}, None),
    "a list of images": Pass(Taking, ([torch.ones(3, 4, 4)] * 2,), {}, None),
    "positions by name": Pass(Taking, (torch.ones(3, 2),), {"position_ids": POSITIONS}, 3),
    "a mapping": Pass(Taking, ({"position_ids": POSITIONS, "input_ids": IDS},), {}, 5),
    "language model, positions first": Pass(models.llama, (), {"position_ids": POSITIONS, "input_ids": IDS}, 5),
    "language model, embeddings": Pass(models.llama, (), {"position_ids": POSITIONS, "inputs_embeds": torch.randn(3, 7, 32)}, 3),
    "language model, by position": Pass(models.llama, (IDS, torch.ones_like(IDS)), {}, 5),
    "speech model": Pass(models.whisper, (torch.randn(2, 80, 100),), {"decoder_input_ids": IDS[:2]}, 2),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", PASSES)
def test_rows_of_a_pass(telemetry: Telemetry, name: str) -> None:
    """The number of rows stands on the span if it is known, and is absent otherwise."""
    make, args, kwargs, rows = PASSES[name]
    model = make().eval()
    telemetry.instrument(model)
    with torch.no_grad():
        model(*args, **kwargs)
    assert telemetry.only(telemetry.forwards()).get(semconv.BATCH_SIZE) == rows


def test_layers_that_are_added_count(telemetry: Telemetry) -> None:
    """After ``refresh()`` the layers that the model has now say where its batch is."""
    model = nn.Sequential(nn.Linear(6, 6))
    handle = telemetry.instrument(model)
    model.insert(0, nn.GRU(6, 6))
    del model[1]
    handle.refresh()
    model(SEQUENCE)
    assert telemetry.only(telemetry.forwards())[semconv.BATCH_SIZE] == 4
