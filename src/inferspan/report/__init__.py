"""Session files read back: the HTML report and the terminal table. Nothing here loads torch or the OpenTelemetry SDK."""
