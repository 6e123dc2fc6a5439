"""What is measured: the same requests in every run, recorded to the file that INFERSPAN_SESSION_FILE names."""

from __future__ import annotations

import sys

import torch

import inferspan

# The code of the side that PYTHONPATH names, not what lies beside this script.
sys.path.pop(0)
from model import Classifier

torch.manual_seed(0)
torch.set_num_threads(1)
model = Classifier().eval()
rows = torch.randn(128, 256)

# Every request counts here, and modules of each would cost time: phases and requests are enough for a gate.
with inferspan.instrument(model, modules="none"), torch.no_grad():
    for _ in range(51):  # the first one of a run does not count
        model(rows)
