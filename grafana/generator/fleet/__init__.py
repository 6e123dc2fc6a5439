"""The dashboard of a fleet."""
