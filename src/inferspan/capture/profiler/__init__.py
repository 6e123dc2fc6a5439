"""Windows in which the passes of a model run under torch's profiler."""
