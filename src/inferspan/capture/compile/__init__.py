"""What torch.compile has compiled, and hiding our own code from it."""
