"""Parts of the load generator of a service: what restarts lose, and whether anything grows."""
