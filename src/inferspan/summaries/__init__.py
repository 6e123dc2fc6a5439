"""Figures of what is being recorded, in the process itself: by operation, by type of event and by module, and how they are shown."""
