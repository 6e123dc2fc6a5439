"""Grafana as part of the stack: its command line, and its settings as environment variables.

In: where the program and its home folder are, and the addresses of the others. Out: arguments and variables. Visitors may look at
everything and explore, and nobody can log in: on a machine with several users a well-known administrator's password would be a hole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["grafana_command_line", "grafana_environment"]


def grafana_command_line(binary: str, home: Path) -> list[str]:
    """Program and arguments; the older program ``grafana-server`` has no subcommand."""
    return [binary, *([] if Path(binary).stem == "grafana-server" else ["server"]), "--homepath", str(home)]


def grafana_environment(folder: Path, address: str, prometheus: str, jaeger: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Settings; each that the user has set in the environment stays."""
    host, _, port = address.rpartition(":")
    settings = {
        "PROM_URL": prometheus,
        "JAEGER_URL": jaeger,
        "GF_SERVER_HTTP_ADDR": host,
        "GF_SERVER_HTTP_PORT": port,
        "GF_PATHS_DATA": str(folder / "data" / "grafana"),
        "GF_PATHS_LOGS": str(folder / "logs"),
        "GF_PATHS_PLUGINS": str(folder / "data" / "grafana" / "plugins"),
        "GF_PATHS_PROVISIONING": str(folder / "grafana" / "provisioning"),
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(folder / "grafana" / "dashboards" / "inferspan-overview.json"),
        "GF_LOG_MODE": "console",
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Editor",
        "GF_AUTH_BASIC_ENABLED": "false",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
        # No data is sent to outside services.
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_NEWS_NEWS_FEED_ENABLED": "false",
        "GF_SECURITY_DISABLE_GRAVATAR": "true",
    }
    return {name: value for name, value in settings.items() if name not in environ}
