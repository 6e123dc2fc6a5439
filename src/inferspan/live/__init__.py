"""What runs now: requests and readings as they arrive, from a session file that grows or from an OTLP receiver, for a terminal."""
