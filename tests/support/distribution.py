"""Which process of pytest-xdist runs which tests: those of a file in one, and files that share servers in one as well."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

__all__ = ["ByServers", "servers_of"]

SHARED = {
    "tests/integration/dashboards/": "served",
    "tests/integration/commands/": "stack",
    "tests/integration/programs/": "stack",
    "tests/integration/services/": "stack",
    "tests/integration/why_slow/": "stack",
}
"""Folders of tests, and the servers of ``tests/integration/conftest.py`` that their files share."""


def servers_of(test: str) -> str | None:
    """Which servers the files of its folder share, of a file or of a test in it, by its path from the root."""
    return next((servers for folder, servers in SHARED.items() if test.startswith(folder)), None)


class ByServers(LoadFileScheduling):
    """``--dist loadfile``, but servers that files share are started in one process only."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return servers_of(file) or file
