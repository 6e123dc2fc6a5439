"""The listener of each test, and torch on one thread."""

from tests.capture.listening import one_thread, telemetry

__all__ = ["one_thread", "telemetry"]
