"""Two recordings side by side: what became slower, larger or different, and whether the noise allows to say so."""
