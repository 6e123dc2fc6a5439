"""Times, memory and energy of a request on its device."""
