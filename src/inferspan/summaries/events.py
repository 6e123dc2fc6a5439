"""Types of the events that spans stand for: what the JSON report lists one by one, and summaries count."""

from __future__ import annotations

from inferspan import semconv

__all__ = ["INPUTS", "OF_STEP", "OTHER_TYPES"]

INPUTS = {
    semconv.STAGE_VISION_ENCODE: "vision_input",
    semconv.STAGE_AUDIO_ENCODE: "audio_input",
    semconv.STAGE_FUSION: "fusion_input",
}
"""By name of a stage of a model."""
OF_STEP = ("generation_step", "forward_pass", "step_complete")
OTHER_TYPES = "(others)"
"""Type under which events over the number of types are counted."""
