"""Detail of requests as OTLP bytes, for the direct path to an OTLP exporter."""
