"""Where reports go: files that are written whole, and reports that a program makes by itself."""
