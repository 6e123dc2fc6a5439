"""Jaeger's links lead to dashboards that exist, with variables that those have, and are made of what spans carry."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from inferspan import semconv
from tests.collector_config.combinations import ROOT, text

PAGE = json.loads(text("jaeger-ui.json"))
# Fields of a trace that the page fills in; in links of other kinds than "traces" they stand behind "trace.".
TRACE_FIELDS = {"traceID", "traceName", "duration", "startTime", "endTime"}
RESOURCE = {"host.name", "service.instance.id"}


@pytest.mark.parametrize("link", PAGE["linkPatterns"], ids=lambda link: link["text"])
def test_links(link: dict[str, str]) -> None:
    """The dashboard is there and has the variables; each placeholder is a field of the trace or the attribute that carries the link."""
    address = urlsplit(re.sub(r"#\{[^}]+}", "x", link["url"]))
    dashboard = json.loads((ROOT / "grafana" / "dashboards" / f"{address.path.removeprefix('/d/')}.json").read_text(encoding="utf-8"))
    assert f"/d/{dashboard['uid']}" == address.path
    given = parse_qs(address.query)
    variables = {name.removeprefix("var-") for name in given if name.startswith("var-")}
    assert variables <= {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(given) == {"from", "to", *(f"var-{name}" for name in variables)}
    placeholders = {found.split("|")[0].strip() for found in re.findall(r"#\{([^}]+)}", link["url"] + link["text"])}
    prefix = "" if link["type"] == "traces" else "trace."
    key = {link["key"]} if "key" in link else set()
    assert placeholders - {prefix + field for field in TRACE_FIELDS} <= key
    carried = RESOURCE if link["type"] == "process" else {row.key for row in semconv.ATTRIBUTES}
    assert key <= carried


def test_first_tags_are_ours() -> None:
    """Each prefix that puts tags first is the beginning of an attribute that is emitted, and none is behind a shorter one that covers it."""
    keys = {row.key for row in semconv.ATTRIBUTES} | {"error"}
    prefixes = PAGE["topTagPrefixes"]
    assert [prefix for prefix in prefixes if not any(key.startswith(prefix) for key in keys)] == []
    covered = [(early, late) for place, early in enumerate(prefixes) for late in prefixes[place + 1 :] if late.startswith(early)]
    assert covered == []
