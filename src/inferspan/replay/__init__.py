"""Sends recordings, of inferspan or of a collector's file exporter, to a receiver of OTLP."""
