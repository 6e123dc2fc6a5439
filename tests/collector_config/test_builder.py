"""The manifest for a collector of one's own: it has all that the configurations use and nothing else, each with its place of use."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.collector_config.combinations import COMBINATIONS, load, text

KINDS = ("receivers", "processors", "exporters", "connectors", "extensions")
# The one module whose name is not its type's.
TYPES = {"otlp_grpc": "otlp"}
LINE = re.compile(r"  - gomod: (\S+) (v\S+)(?: # (.*))?")


def test_components_are_those_in_use() -> None:
    """Every component of a configuration is in the manifest, with the files that need it: overlays only where no file below them does."""
    used: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in COMBINATIONS:
        if each.program != "otelcol":
            continue
        for kind in KINDS:
            needed: set[str] = set()
            for name in each.files:
                own = {component.partition("/")[0] for component in load(name).get(kind) or {}}
                for component in own - needed:
                    used[kind, TYPES.get(component, component).replace("_", "")].add(name.removesuffix(".yaml"))
                needed |= own
    written = {}
    kind = ""
    for line in text("builder-config.yaml").splitlines():
        if line.endswith(":"):
            kind = line.removesuffix(":")
        elif (found := LINE.fullmatch(line)) and kind in KINDS:
            module = found[1].rpartition("/")[2].removesuffix(kind.removesuffix("s"))
            written[kind, module] = set(found[3].split(", "))
    assert written == used


def test_versions_are_those_of_one_release() -> None:
    """Components have the version of the distribution, and nothing is replaced by anything."""
    manifest = load("builder-config.yaml")
    version = f"v{manifest['dist']['version']}"
    assert {LINE.fullmatch(f"  - gomod: {each['gomod']}")[2] for kind in KINDS for each in manifest[kind]} == {version}  # type: ignore[index]
    assert version in text("builder-config.yaml").split("dist:")[0], "the builder has to be of the same version"
    assert set(manifest) == {"dist", *KINDS, "providers"}
