"""Writes the dashboards of ``grafana/dashboards`` from typed builders, checked names and one layout; for development only."""

import contextlib
import warnings

with warnings.catch_warnings(), contextlib.suppress(ImportError):
    # Importing it the first time gives a DeprecationWarning: it announces a successor whose JSON Grafana 12 and older cannot read.
    # Without it (Python 3.10) the catalogue can still be used.
    warnings.simplefilter("ignore", DeprecationWarning)
    import grafana_foundation_sdk.builders.dashboard
    import grafana_foundation_sdk.builders.prometheus  # noqa: F401
