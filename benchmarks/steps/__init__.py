"""What recording adds to a decode step, measured by changing from step to step what is done."""
