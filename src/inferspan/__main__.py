"""``python -m inferspan``: the same as the ``inferspan`` command."""

from __future__ import annotations

import sys

from inferspan.cli import main

if __name__ == "__main__":
    sys.exit(main())
