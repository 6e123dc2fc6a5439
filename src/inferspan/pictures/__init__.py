"""Pictures of graphs: boxes, frames and links; as JSON, DOT and SVG. Needs neither torch nor Graphviz."""
