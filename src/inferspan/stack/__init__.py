"""``inferspan stack``: collector, Jaeger, Prometheus and, if there is one, Grafana, as processes under one supervisor; no containers.

In come programs on PATH, the bundled configurations and environment variables; out come addresses and a folder with state, logs and
data. A fault raises ``StackError`` with a text that names the program, port or variable and the remedy.
"""
