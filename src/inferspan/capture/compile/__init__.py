"""What torch.compile has done to a model, and keeping our own code out of its sight."""
