"""Why a recording took its time: causes with shares of it, what shows them, the next thing to change and the gain to expect."""
