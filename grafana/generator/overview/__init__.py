"""The dashboard to begin with."""
