"""A client for single OTLP requests, whose answers are read in full: for ``replay`` and ``doctor``, not for a program's telemetry."""
