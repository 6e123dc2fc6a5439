"""The program that the gate guards: a small classifier."""

from __future__ import annotations

from torch import Tensor, nn


class Classifier(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(256, 1024), nn.Linear(1024, 8)

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of 8 classes for each of (n, 256) rows."""
        scores: Tensor = self.head(self.hidden(rows).relu())
        return scores
