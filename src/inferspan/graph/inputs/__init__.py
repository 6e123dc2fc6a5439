"""Inputs of a graph: from a sample, and from what replay is given, to the values that the graph takes."""
