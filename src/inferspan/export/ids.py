"""Trace and span ids from a private source of randomness.

The SDK's generator draws from the global ``random``, which machine-learning programs seed: after ``random.seed(42)`` every run and
every rank gets the same ids, and tracing changes seeded results. Ours draws from a generator of its own, seeded by the operating
system and again in a forked child. It is the ``inferspan`` entry of the ``opentelemetry_id_generator`` entry points.
"""

from __future__ import annotations

import functools
import logging
import os
import random
from typing import Any

from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

__all__ = ["RandomIds", "adopt_ids", "ids"]

_log = logging.getLogger("inferspan")


class RandomIds(IdGenerator):
    """Random ids that neither read nor advance the global ``random``; safe to call from several threads."""

    def __init__(self) -> None:
        self._reseed()

    def _reseed(self) -> None:
        self._pid = os.getpid()
        self._bits = random.Random(os.urandom(16)).getrandbits

    def _draw(self, bits: int) -> int:
        if self._pid != os.getpid():
            self._reseed()
        # Zero is the invalid id.
        return self._bits(bits) or self._draw(bits)

    def generate_span_id(self) -> int:
        """Draw a span id of 64 bits, never 0."""
        return self._draw(64)

    def generate_trace_id(self) -> int:
        """Draw a trace id of 128 bits, never 0."""
        return self._draw(128)

    def is_trace_id_random(self) -> bool:
        """Say that all bits are random, which sets the random flag of W3C Trace Context."""
        return True


@functools.cache
def ids() -> RandomIds:
    """The generator that everything of ours shares."""
    return RandomIds()


def adopt_ids(tracer: Any) -> bool:
    """Let our own tracer of a host's provider draw its ids from ``ids()``, if the provider uses the SDK's default generator.

    The provider and its other tracers stay as they are. Does nothing for a tracer that is not the SDK's, or one whose generator
    somebody chose.

    Returns:
        Whether the generator was exchanged.
    """
    tracer = getattr(tracer, "_tracer", tracer)
    if type(getattr(tracer, "id_generator", None)) is not RandomIdGenerator:
        return False
    tracer.id_generator = ids()
    _log.info(
        "The tracer provider draws ids from the global random module, which seeding repeats; the spans of inferspan use ids of their own"
        " (for all spans: OTEL_PYTHON_ID_GENERATOR=inferspan, or TracerProvider(id_generator=inferspan.export.ids.RandomIds()))"
    )
    return True
