"""What generated tokens say of a generation: counts, repetition, loops, confidence, and the findings that these give."""
