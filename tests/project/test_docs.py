"""The pages say what the code does: generated ones are current, code blocks run, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import generate
from inferspan.stack.plan import PROMETHEUS_FLAGS
from inferspan.stack.programs import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("collector-config/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]*]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(language: str) -> list[object]:
    """The code blocks of all pages in a language, each with a name that says where it stands."""
    return [
        pytest.param(match[2], id=f"{page.relative_to(ROOT)}:{page.read_text().count(chr(10), 0, match.start()) + 1}")
        for page in PAGES
        for match in BLOCK.finditer(page.read_text())
        if match[1] == language
    ]


def anchor(heading: str) -> str:
    """The anchor that a heading gets on the usual forges."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", generate.pages(), ids=lambda path: path.name)
def test_generated_page_is_current(page: Path) -> None:
    """The page on disk is what ``make docs`` would write."""
    assert page.read_text() == generate.pages()[page]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_block_runs(code: str, tmp_path: Path) -> None:
    """A program copied from a page runs, in a process of its own, with no destination for telemetry."""
    program = tmp_path / "block.py"
    program.write_text(code)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(program)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def folders() -> list[str]:
    """The folders of the package that hold Python files, as ``capture/modules/``."""
    package = ROOT / "src" / "inferspan"
    found = {path.parent.relative_to(package).as_posix() for path in package.rglob("*.py")}
    return sorted(f"{name}/" for name in found - {"."})


@pytest.mark.parametrize("folder", folders())
def test_folder_has_its_section(folder: str) -> None:
    """The page on the data flow has a section for each folder of the package."""
    assert f"`{folder}`" in HEADING.findall((ROOT / "docs" / "data-flow.md").read_text())


def test_every_page_answers_a_question() -> None:
    """The table of questions has each page, so that a reader finds it."""
    linked = LINK.findall((ROOT / "docs" / "README.md").read_text())
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")} - {"README.md"}
    assert pages - {link.partition("#")[0] for link in linked} == set()


FILE = re.compile(r"`([\w/]+\.(?:py|c))`")
PACKAGE = ROOT / "src" / "inferspan"


def sections() -> list[object]:
    """The sections on folders of the page on the data flow, each with the folder."""
    parts = re.split(r"^### (.+)$", (ROOT / "docs" / "data-flow.md").read_text(), flags=re.MULTILINE)[1:]
    return [
        pytest.param(PACKAGE if title == "Root" else PACKAGE / title.strip("`"), text, id=title)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    ]


@pytest.mark.parametrize(("folder", "text"), sections())
def test_files_of_a_folder_are_in_it(folder: Path, text: str) -> None:
    """A section names files of its folder; those of another one by their path in the package."""
    assert [name for name in FILE.findall(text) if not (folder / name).is_file() and not ("/" in name and (PACKAGE / name).is_file())] == []


def test_files_that_recipes_name_exist() -> None:
    """The page for contributors names files by their path in the repository or in the package."""
    names = FILE.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert [name for name in names if not (ROOT / name).is_file() and not (PACKAGE / name).is_file()] == []


def commands(page: str) -> list[str]:
    """The shell commands of a page, each on one line."""
    text = "".join(match[2] for match in BLOCK.finditer((ROOT / page).read_text()) if match[1] == "sh")
    return text.replace("\\\n", " ").splitlines()


def test_the_three_programs_start_by_hand_as_in_the_stack() -> None:
    """The page starts the three programs in the folder of their files, which exist, and Prometheus as `inferspan stack up` does."""
    start = re.compile(r"cd collector-config && (?:\w+=\S+ )*(\S+) --config")
    started = [line for line in commands("collector-config/README.md") if start.match(line)]
    assert [match[1] for line in started if (match := start.match(line))] == ["jaeger", "prometheus", "otelcol-contrib"]
    flags = re.findall(r"--\S+", started[1])
    assert flags == ["--config.file=prometheus.yml", "--web.listen-address=127.0.0.1:9090", *PROMETHEUS_FLAGS]
    files = [name for line in started for name in re.findall(r"[\w.]+\.ya?ml", line)]
    assert len(files) == 3
    assert [name for name in files if not (ROOT / "collector-config" / name).is_file()] == []


def test_the_programs_of_the_readme_are_those_of_the_stack() -> None:
    """The table of programs to download names the commands that are looked for, where they are released, and the version."""
    rows = [row for row in (ROOT / "README.md").read_text().splitlines() if row.startswith("| `")]
    for program in PROGRAMS:
        (row,) = [row for row in rows if f"`{program.names[0]}`" in row]
        version = re.sub(r"^.*?(?=\d)", "", program.what)
        assert f"https://{program.project}" in row and row.rstrip(" |").endswith(f"| {version}"), row


@pytest.mark.parametrize("page", ["README.md", "collector-config/README.md"])
def test_shown_commands_name_their_service(page: str) -> None:
    """Whoever copies a command that sends telemetry finds it under a name."""
    sending = [line for line in commands(page) if re.search("OTEL_EXPORTER_OTLP_ENDPOINT=|INFERSPAN_SESSION_FILE=", line)]
    assert sending != []
    assert [line for line in sending if "OTEL_SERVICE_NAME=" not in line] == []


def test_the_components_that_a_collector_needs_are_named() -> None:
    """Every component of the collector's configuration is in its page."""
    yaml = pytest.importorskip("yaml")
    loaded = yaml.safe_load((ROOT / "collector-config" / "dev.yaml").read_text())
    page = (ROOT / "collector-config" / "README.md").read_text()
    kinds = {
        name.partition("/")[0] for part in ("extensions", "receivers", "processors", "connectors", "exporters") for name in loaded[part]
    }
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of the page names a file that is there, and a heading that the file has."""
    text = BLOCK.sub("", page.read_text())
    broken = []
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, fragment = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        anchors = {anchor(heading) for heading in HEADING.findall(target.read_text())} if fragment and target.is_file() else set()
        if not target.exists() or (fragment and fragment not in anchors):
            broken.append(link)
    assert broken == []
