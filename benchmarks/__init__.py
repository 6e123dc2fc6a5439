"""What inferspan costs, measured: ``python -m benchmarks --help``.

Not part of the installed package. ``__main__`` reads the command line and runs the parts of a plan; every part gives lines of a table, and all of
them go to standard output, to Markdown and to JSON. What the figures mean is said in ``docs/overhead.md``.
"""
