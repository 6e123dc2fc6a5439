"""Telemetry on its way out of the process: providers, exporters, their settings and their shutdown."""

from inferspan.export.sdk_variables import import_sdk

# The SDK raises while it is imported if one of its variables is wrong. This is the one place where importing reads the environment.
import_sdk()
