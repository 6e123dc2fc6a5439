"""Draws dashboards from their JSON and live data, without Grafana: a development tool, in no package that is published.

The page in ``page/`` is built on the Apache-2.0 parts of Grafana's front end (``@grafana/ui``, ``@grafana/data``); what is published there
only with its AGPL server (heat maps, state timelines, bar charts) is drawn by code of ours. It looks close to Grafana, not equal.
"""
