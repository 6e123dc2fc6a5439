"""The demo: a small real language model from PyPI, some prompts, and what inferspan says about them. Loads torch only when it runs."""

from __future__ import annotations

from inferspan.demo.conversation import run_demo
from inferspan.demo.model import MODEL_NAME, DemoError, load_model, load_smollm2

__all__ = ["MODEL_NAME", "DemoError", "load_model", "load_smollm2", "run_demo"]
