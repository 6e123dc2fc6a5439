"""The dashboards as code: tables of panels in, Grafana JSON out."""
