"""The collector, Jaeger, Prometheus and, if it is there, Grafana as local processes: started, watched and stopped together."""
