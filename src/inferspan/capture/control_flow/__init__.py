"""Branches and loops that the data of a pass has decided: which modules ran, how often, and in which passes others did."""
