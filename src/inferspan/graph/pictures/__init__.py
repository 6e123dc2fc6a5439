"""Pictures of graphs: boxes for targets, ignored modules and the operations between them; as JSON, DOT and SVG."""
