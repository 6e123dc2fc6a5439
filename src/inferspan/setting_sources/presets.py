"""Named starting points of the settings; every other source overrides what they set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PRESETS"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "light": {"modules": "none", "logits": False, "token_arrays": False, "analysis": False, "steps": "sampled"},
    "debug": {"modules": "all", "every_step": True, "output_stats": True},
}
"""By name, the settings that differ from the defaults."""
