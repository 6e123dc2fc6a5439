"""Figures made from records and session files: operations, and what was generated. No torch and no OpenTelemetry here."""
