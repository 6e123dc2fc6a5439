"""Which module's output feeds which module's input, in passes that are recorded with their modules."""
