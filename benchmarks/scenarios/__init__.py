"""Everything that inferspan emits in a fixed set of situations, recorded and compared: a net under changes that must not be seen from outside.

``python -m benchmarks.scenarios record before.json`` runs every scenario, ``python -m benchmarks.scenarios compare before.json after.json``
lists what differs. Only the public interface of inferspan is used, so that one set of scenarios runs on versions with other modules inside.
"""
