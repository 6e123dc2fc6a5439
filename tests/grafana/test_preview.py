"""The dashboard preview: its arguments, what the page is told, the way to the servers; one real picture where its programs are installed."""

from __future__ import annotations

import json
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from grafana.preview import __main__ as command
from grafana.preview import browser
from grafana.preview.server import Site, serving


class _Prometheus(BaseHTTPRequestHandler):
    """Answers every query with one series of one point, a range with three; a query of ``rate(x[`` with its parse error."""

    def do_GET(self) -> None:
        self._answer(200, {"status": "success", "data": []})

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        if form["query"] == "rate(x[":
            self._answer(400, {"status": "error", "error": "1:8: parse error"})
            return
        end = float(form.get("end") or form["time"])
        points = [[end - 60 * n, str(3 - n)] for n in (2, 1, 0)]
        series = {"metric": {"query": form["query"]}, "values": points, "value": points[-1]}
        self._answer(200, {"status": "success", "data": {"resultType": "matrix", "result": [series]}})

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def prometheus() -> Iterator[str]:
    """The address of a server that answers like Prometheus."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Prometheus)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def _dashboard(*queries: str) -> bytes:
    panels = [
        {
            "type": "timeseries",
            "title": f"Panel {number}",
            "gridPos": {"x": 0, "y": 8 * number, "w": 24, "h": 8},
            "targets": [{"refId": "A", "expr": query, "datasource": {"type": "prometheus", "uid": "${ds_prom}"}}],
        }
        for number, query in enumerate(queries)
    ]
    variables = [{"name": "ds_prom", "type": "datasource", "query": "prometheus"}, {"name": "model", "type": "textbox", "query": "none"}]
    return json.dumps({"title": "Two panels", "panels": panels, "templating": {"list": variables}}).encode()


def test_the_page_is_told_the_choices() -> None:
    """Times, theme, interval and variables become the page's query string; times without ``now`` count from now."""
    arguments = command.parse(["--from", "-1h", "--to=-5m", "--var", "model=a,b", "--var", "phase=x=y", "--theme", "light", "--closed"])
    expected = [
        ("from", "now-1h"),
        ("to", "now-5m"),
        ("theme", "light"),
        ("interval", "15"),
        ("closed", "1"),
        ("var-model", "a,b"),
        ("var-phase", "x=y"),
    ]
    assert parse_qsl(command.page_query(arguments)) == expected


def test_a_choice_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """``--var`` without an equals sign ends with the form that is wanted."""
    with pytest.raises(SystemExit):
        command.parse(["--var", "model"])
    assert "'model' is not NAME=VALUE" in capsys.readouterr().err


def test_dashboards_are_found_by_file_name_and_uid(tmp_path: Path) -> None:
    """A path is taken as it is, a name stands for a file of the folder with or without ``inferspan-``, no name for all of them."""
    files = [tmp_path / "inferspan-gpu.json", tmp_path / "other.json"]
    for file in files:
        file.write_text("{}")
    assert command.dashboard_files(["gpu", str(files[1]), "other"], tmp_path) == [files[0], files[1], files[1]]
    assert command.dashboard_files([], tmp_path) == files
    with pytest.raises(browser.PreviewError, match="no dashboard fleet: give a JSON file or one of inferspan-gpu, other"):
        command.dashboard_files(["fleet"], tmp_path)


def test_missing_programs_are_named_together_with_what_to_install() -> None:
    """One line names all that is missing and how to get it."""
    with pytest.raises(
        browser.PreviewError, match=r"not on PATH: npm, chromium; install Node.js 20 or newer with npm, and Chromium"
    ) as caught:
        browser.find_tools({"node": "/bin/node"}.get)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there_ends_the_command_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is installed or drawn if Prometheus does not answer; the line names the address and the argument."""
    dashboard = tmp_path / "some.json"
    dashboard.write_bytes(_dashboard("up"))
    try:
        browser.find_tools()
    except browser.PreviewError as error:
        pytest.skip(str(error))
    assert command.main([str(dashboard), "--prometheus", "http://127.0.0.1:9", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("grafana.preview: Prometheus at http://127.0.0.1:9 does not answer")
    assert said.endswith("or give --prometheus URL\n")


def test_the_page_reaches_its_files_and_the_servers(tmp_path: Path, prometheus: str) -> None:
    """One origin gives the dashboard, files of its folders and nothing beside them, and passes queries on, errors with their text."""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("the page")
    (tmp_path / "secret").write_text("not for the page")
    upstream = {"/prom/": ("Prometheus", prometheus), "/jaeger/": ("Jaeger", None), "/gone/": ("Gone", "http://127.0.0.1:9")}

    def ask(path: str, body: bytes | None = None) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"{address}{path}", body, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()

    with serving(Site(b'{"panels": []}', {"/": tmp_path / "page"}, upstream)) as address:
        assert ask("/dashboard.json") == (200, b'{"panels": []}')
        assert ask("/?theme=dark") == (200, b"the page")
        assert [ask(path)[0] for path in ("/../secret", "/%2e%2e/secret", "/nothing")] == [404, 404, 404]
        assert ask("/prom/api/v1/labels") == (200, b'{"status": "success", "data": []}')
        assert ask("/prom/api/v1/query", b"query=rate(x%5B") == (400, b'{"status": "error", "error": "1:8: parse error"}')
        assert ask("/jaeger/api/traces") == (502, b"no address of Jaeger was given")
        assert ask("/gone/x")[1].startswith(b"Gone at http://127.0.0.1:9 does not answer: ")
        assert ask("/elsewhere", b"x") == (404, b"nothing takes a POST here")


def test_a_dashboard_becomes_a_picture(tmp_path: Path, prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A panel with variables is drawn; a query that fails is named and makes the exit code 1; the picture has the asked width."""
    try:
        browser.find_tools()
    except browser.PreviewError as error:
        pytest.skip(str(error))
    if not (browser.MODULES / ".inferspan-installed").exists():
        pytest.skip("the preview's npm packages (480 MB) are not installed: `make pictures` installs them")
    dashboard = tmp_path / "two.json"
    dashboard.write_bytes(_dashboard('up{model="$model"}[$__rate_interval]', "rate(x["))
    arguments = [
        str(dashboard),
        "--prometheus",
        prometheus,
        "--jaeger",
        prometheus,
        "--var",
        "model=m",
        "--out",
        str(tmp_path),
        "--width",
        "800",
    ]
    assert command.main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == f"wrote {tmp_path / 'two.png'}: 2 panels, 0 without data, 1 failures\n"
    assert said.err == "  two, 'Panel 1': 1:8: parse error\n    rate(x[\n"
    header = (tmp_path / "two.png").read_bytes()[:24]
    assert header[1:4] == b"PNG"
    assert struct.unpack(">II", header[16:24])[0] == 800
