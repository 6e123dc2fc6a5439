"""The model of these services: that of the examples."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from models import load

__all__ = ["load"]
