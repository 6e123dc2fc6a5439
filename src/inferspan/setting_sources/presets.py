"""Named starting points of the settings; every other source overrides what they set."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from inferspan.setting_checks import MODEL_STAGES, PIPELINE_STAGES, SettingsError, tags

__all__ = ["PRESETS", "with_mode"]

_LIGHT: Mapping[str, Any] = {"modules": "none", "logits": False, "token_arrays": False, "analysis": False, "steps": "sampled"}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "light": _LIGHT,
    "debug": {"modules": "all", "every_step": True, "output_stats": True},
    "development": {
        "live": True,
        "display_interval": 1.0,
        "gpu_interval": 0.1,
        "host_interval": 0.5,
        "session_file": "inferspan-{pid}.jsonl",
        "report": "both",
        "stages": "auto",
        "session_tags": {"mode": "development"},
    },
    "production": {
        **_LIGHT,
        "live": False,
        "gpu_interval": 1.0,
        "host_interval": 2.0,
        "gpu_metrics": ("memory", "utilization"),
        "host_metrics": ("memory",),
        "allocator": False,
        "max_data_points": 5000,
        "stages": tuple(stage for stage in MODEL_STAGES + PIPELINE_STAGES if stage != "text_encode"),
        "session_tags": {"mode": "production"},
    },
}
"""By name, the settings that differ from the defaults."""


def with_mode(preset: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values, with the tags of the preset beside those of another source, which are stronger."""
    given = values.get("session_tags")
    own = PRESETS[preset].get("session_tags")
    if own is None or given is own:
        return values
    with contextlib.suppress(SettingsError):  # it is raised when the settings are made
        return {**values, "session_tags": {**own, **dict(tags("session_tags", given))}}
    return values
