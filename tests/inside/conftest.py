"""The telemetry of the tests of ``inside``."""

from tests.cases.conftest import *  # noqa: F403
