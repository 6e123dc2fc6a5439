"""What works in an environment, what does not, and the fix.

``probe`` runs in the Python and the environment of a program, in a process of its own, and gives findings by topic; ``command`` finds out
which those are; ``output`` shows the findings.
"""
