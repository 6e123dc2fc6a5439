"""What a request takes on its device: times, memory, energy."""
