"""Providers, exporters, ids, resource, files and shutdown: the only folder that imports the OpenTelemetry SDK."""
