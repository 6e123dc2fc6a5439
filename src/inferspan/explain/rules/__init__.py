"""The rules, one file a family: a rule is a function from figures to causes."""
