"""Any ``nn.Module``: every call of it is one ``forward`` request with a span for each module below."""

import torch
from torch import nn

import inferspan
from inferspan.report.session import Span, read_session


class Classifier(nn.Module):
    """Two layers and a head; nothing of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2)])
        self.head = nn.Linear(16, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores of three classes for each row."""
        for layer in self.layers:
            rows = layer(rows)
        return self.head(rows)


def show(span: Span, depth: int = 0) -> None:
    """Print a span and what is below it."""
    shapes = span.attributes.get("inferspan.output.shapes", ())
    print("  " * depth + span.name, *shapes)
    for child in span.children:
        show(child, depth + 1)


model = Classifier().eval()
with inferspan.instrument(model, model_name="classifier", modules="all", session_file="module.otlp.jsonl"), torch.inference_mode():
    model(torch.randn(8, 16))

inferspan.flush()
show(read_session("module.otlp.jsonl").requests[-1].span)
