"""Parts of the user's program that are recorded: stages, sessions, generations by hand."""
