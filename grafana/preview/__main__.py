"""The command ``python -m grafana.preview``: pictures of dashboards with the data of a running Prometheus and Jaeger.

In come dashboards (files, or names of those in ``grafana/dashboards``) and the addresses; out comes a PNG for each. The exit code is 0,
1 if a query or a panel failed (each is named, and drawn in its panel), 2 if nothing could be drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grafana.preview.browser import BUILD, FOLDER, MODULES, PreviewError, Tools, build, draw, find_tools, install
from grafana.preview.server import Site, serving

__all__ = ["dashboard_files", "main", "page_query", "parse", "site"]

DASHBOARDS = FOLDER.parent / "dashboards"


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m grafana.preview", description="Draw dashboards in a headless Chromium.")
    add = result.add_argument
    add("dashboards", metavar="DASHBOARD", nargs="*", help="JSON file, or a name such as overview; default: all of grafana/dashboards")
    add("--prometheus", metavar="URL", default="http://127.0.0.1:9090", help="default: %(default)s")
    add("--jaeger", metavar="URL", default="http://127.0.0.1:16686", help="default: %(default)s; needed by tables of traces only")
    add("--from", dest="start", metavar="TIME", default="now-15m", help="now-15m, -15m or an ISO time; default: %(default)s")
    add("--to", dest="end", metavar="TIME", default="now", help="default: %(default)s")
    add("--var", metavar="NAME=VALUE[,VALUE]", action="append", default=[], type=_variable, help="choice of a variable; may be repeated")
    add("--interval", metavar="SECONDS", type=float, default=15, help="time interval of the data source; default: %(default)s")
    add("--theme", choices=("dark", "light"), default="dark", help="default: %(default)s")
    add("--width", metavar="PIXELS", type=int, default=1600, help="default: %(default)s")
    add("--scale", type=float, default=1.0, help="device pixels for each pixel; default: %(default)s")
    add("--height", metavar="PIXELS", type=int, help="cut the picture after so many pixels")
    add("--rows", action="store_true", help="also write a picture of each row")
    add("--closed", action="store_true", help="leave collapsed rows closed, as Grafana opens the dashboard")
    add("--out", metavar="DIR", type=Path, default=FOLDER / "pictures", help="folder of the pictures; default: grafana/preview/pictures")
    return result


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _joined(argv: Sequence[str]) -> list[str]:
    # argparse takes the -15m of `--from -15m` for an option of its own.
    joined: list[str] = []
    for each in argv:
        if joined and joined[-1] in ("--from", "--to"):
            joined[-1] += f"={each}"
        else:
            joined.append(each)
    return joined


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command's arguments."""
    return _parser().parse_args(_joined(argv))


def dashboard_files(names: Sequence[str], folder: Path = DASHBOARDS) -> list[Path]:
    """The files that are meant: paths as given, names looked up in ``folder``, everything in it for no name."""
    known = {path.stem: path for path in sorted(folder.glob("*.json"))}
    if not names:
        if not known:
            raise PreviewError(f"no dashboards in {folder}: run `make dashboards`")
        return list(known.values())
    found = []
    for name in names:
        path = Path(name) if Path(name).suffix == ".json" else known.get(name, known.get(f"inferspan-{name}"))
        if path is None or not path.is_file():
            raise PreviewError(f"no dashboard {name}: give a JSON file or one of {', '.join(known) or '(none generated yet)'}")
        found.append(path)
    return found


def page_query(arguments: argparse.Namespace) -> str:
    """The query string that tells the page what to draw."""
    times = {"from": arguments.start, "to": arguments.end}
    pairs = [(name, f"now{time}" if time.startswith("-") else time) for name, time in times.items()]
    pairs += [("theme", arguments.theme), ("interval", f"{arguments.interval:g}"), *([("closed", "1")] if arguments.closed else [])]
    pairs += [(f"var-{name}", value) for name, value in arguments.var]
    return urllib.parse.urlencode(pairs)


def site(dashboard: bytes, prometheus: str, jaeger: str | None) -> Site:
    """Everything that the page asks for, by path."""
    fonts = {"inter": "inter", "roboto": "roboto-mono"}
    return Site(
        dashboard,
        {
            "/": BUILD,
            "/public/build/img/": MODULES / "@grafana/ui/dist/public/img",
            "/public/img/": MODULES / "@grafana/ui/dist/public/img",
            **{
                f"/public/fonts/{name}/": MODULES / f"@fontsource-variable/{font}/files/{font}-latin-wght-normal.woff2"
                for name, font in fonts.items()
            },
        },
        {"/prom/": ("Prometheus", prometheus), "/jaeger/": ("Jaeger", jaeger)},
    )


def _require(name: str, url: str, option: str) -> None:
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise PreviewError(f"{name} at {url} does not answer ({reason}): `inferspan stack up` starts it, or give {option} URL") from None


def _draw_one(tools: Tools, path: Path, arguments: argparse.Namespace) -> bool:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PreviewError(f"{path} is not JSON: {error}") from None
    if not isinstance(content.get("panels"), list):
        raise PreviewError(f"{path} is no dashboard: it has no list of panels")
    picture = arguments.out / f"{path.stem}.png"
    with serving(site(json.dumps(content).encode(), arguments.prometheus, arguments.jaeger)) as address:
        report = draw(
            tools, f"{address}/?{page_query(arguments)}", picture,
            width=arguments.width, scale=arguments.scale, rows=arguments.rows, crop=arguments.height,
        )  # fmt: skip
    print(f"wrote {picture}: {report['panels']} panels, {len(report['empty'])} without data, {len(report['failures'])} failures")
    if report["empty"]:
        print(f"  without data: {'; '.join(report['empty'])}")
    for failure in report["failures"]:
        print(f"  {path.stem}, {failure['panel']!r}: {failure['message']}\n    {failure['query']}".rstrip(), file=sys.stderr)
    return not report["failures"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments without the program's name; default those of the process.

    Returns:
        The exit code.
    """
    arguments = parse(sys.argv[1:] if argv is None else argv)
    try:
        paths = dashboard_files(arguments.dashboards)
        tools = find_tools()
        _require("Prometheus", arguments.prometheus, "--prometheus")
        arguments.out.mkdir(parents=True, exist_ok=True)
        install(tools)
        build(tools)
        good = [_draw_one(tools, path, arguments) for path in paths]
    except PreviewError as error:
        print(f"grafana.preview: {error}", file=sys.stderr)
        return 2
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
