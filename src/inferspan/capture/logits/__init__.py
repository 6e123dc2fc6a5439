"""Statistics of logits: computed where the logits are, read when they have come to the host."""
