"""The dashboard of a model."""
