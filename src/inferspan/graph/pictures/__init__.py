"""Pictures of traced graphs: boxes for targets, ignored modules and the operations between them."""
