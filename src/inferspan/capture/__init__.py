"""What the model does, seen from outside: hooks and wrappers that append records and change nothing."""
