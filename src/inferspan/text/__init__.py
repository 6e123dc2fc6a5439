"""Words for people, which every folder may use."""
