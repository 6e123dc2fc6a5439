"""Session files: OTLP JSON lines, appended whole."""
