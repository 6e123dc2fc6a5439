"""Training: where gradients vanish, as a span for each backward call of a module and a table of norms."""

import torch
from torch import nn

import inferspan
from inferspan.report.session import Span, read_session

torch.manual_seed(0)
model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(16, 16), nn.Sigmoid())], nn.Linear(16, 1))
handle = inferspan.instrument(model, model_name="deep", gradients=[nn.Linear], modules="none", session_file="training.otlp.jsonl")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(3):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

for row in handle.gradients():
    print(f"{row.module or 'output of the model'}: {row.calls} backward calls, gradient of the output {row.outputs.norm:.1e}")

inferspan.flush()


def show(span: Span, depth: int = 0) -> None:
    """Print a span and what is below it."""
    print("  " * depth + span.name)
    for child in span.children:
        show(child, depth + 1)


show(read_session("training.otlp.jsonl").requests[-1].span)
