"""What passes of a model cost, how fast the device could be, and what limits it. Arithmetic on shapes; no torch, no OpenTelemetry."""
