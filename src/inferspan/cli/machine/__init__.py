"""Commands about the machine itself."""
