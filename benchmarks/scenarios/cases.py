"""All scenarios, in the order in which they are recorded."""

from __future__ import annotations

from benchmarks.scenarios import (
    compiled_cases,
    delivery_cases,
    failure_cases,
    forward_cases,
    generation_cases,
    setting_cases,
    text_cases,
)
from benchmarks.scenarios.registry import Scenario

__all__ = ["SCENARIOS"]

_TABLES = (generation_cases, text_cases, setting_cases, failure_cases, forward_cases, compiled_cases, delivery_cases)

SCENARIOS: dict[str, Scenario] = {one.name: one for table in _TABLES for one in table.scenario.scenarios}
"""Every scenario by name."""
if len(SCENARIOS) != sum(len(table.scenario.scenarios) for table in _TABLES):
    raise RuntimeError("two scenarios have one name")
