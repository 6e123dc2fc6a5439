"""What hooks on single modules see during recorded requests: NaN and Inf in outputs, and what functions of the program return."""
