"""Programs that know nothing of inferspan, and how the tests run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["GENERATE", "PATH", "metadata", "run", "spans"]

ROOT = Path(__file__).resolve().parents[2]
GENERATE = """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def answer(seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, pad_token_id=0, eos_token_id=2)
    model = LlamaForCausalLM(config).eval()
    return model.generate(torch.tensor([[1, 5, 9]]), max_new_tokens=4, min_new_tokens=4, do_sample=False).tolist()
"""
"""A module with a function that builds a model and calls it."""
PATH = os.pathsep.join((str(ROOT / "src"), str(ROOT)))


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with some arguments in a folder."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH, **variables}
    return subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)



def spans(path: Path) -> list[dict[str, Any]]:
    """The spans in a session file."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                found += scope["spans"]
    return found


def metadata(folder: Path) -> Path:
    """A folder with the metadata that the package has once it is installed, as ``pyproject.toml`` has it now."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    points = re.findall(r'\[project\.entry-points\.(\w+)]\n(\w+ = "[^"]+")', text)
    needed = re.search(r'^instruments-any = \["([^"]+)"', text, re.MULTILINE)
    assert needed is not None
    place = folder / "inferspan-0.1.0.dist-info"
    place.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", "Name: inferspan", "Version: 0.1.0", "Provides-Extra: instruments-any"]
    (place / "METADATA").write_text("\n".join([*lines, f'Requires-Dist: {needed[1]}; extra == "instruments-any"', ""]))
    (place / "entry_points.txt").write_text("".join(f"[{group}]\n{line.replace(chr(34), '')}\n" for group, line in points))
    return folder
