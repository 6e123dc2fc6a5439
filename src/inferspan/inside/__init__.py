"""Looking inside a model through its handle."""
