"""Where settings come from, which source wins, and what a wrong one says."""

from __future__ import annotations

import logging
import math
from array import array
from pathlib import Path
from typing import Any

import pytest

from inferspan.settings import CAPTURE_VARIABLE, PRESETS, STABILITY_VARIABLE, Settings, SettingsError, describe, environment_name


def _file(tmp_path: Path, text: str) -> Path:
    pytest.importorskip("yaml")
    path = tmp_path / "inferspan.yaml"
    path.write_text(text)
    return path


def test_precedence(tmp_path: Path) -> None:
    """Argument over environment over file over preset over default, each for itself."""
    path = _file(tmp_path, "top_k: 2\nlogits: true\nmodules: all\nsampler_interval: 9\n")
    environ = {"INFERSPAN_TOP_K": "3", "INFERSPAN_LOGITS": "no", "INFERSPAN_PRESET": "light", "INFERSPAN_CONFIG": str(path)}
    found = Settings.resolve({"top_k": 4}, environ=environ)
    assert (found.top_k, found.logits, found.modules, found.sampler_interval, found.steps, found.output_stats) == (
        4, False, "all", 9.0, "sampled", False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "variable", "in_file", "expected"),
    [
        (None, None, None, "default"),
        (None, None, "debug", "debug"),
        (None, "light", "debug", "light"),
        ("debug", "light", "default", "debug"),
        (None, "nonsense", "light", "light"),
    ],
)
def test_preset(tmp_path: Path, argument: str | None, variable: str | None, in_file: str | None, expected: str) -> None:
    """The strongest source that names a preset chooses it; a wrong variable is passed over."""
    path = _file(tmp_path, f"preset: {in_file}\n" if in_file else "")
    environ = {"INFERSPAN_PRESET": variable} if variable else {}
    assert Settings.resolve(preset=argument, config_file=path, environ=environ) == Settings(**PRESETS[expected])


def test_null_in_a_file(tmp_path: Path) -> None:
    """An empty value in a file means the default where the default is nothing, and is an error elsewhere."""
    assert Settings.resolve(config_file=_file(tmp_path, "operation:\nsession_file: null\n"), environ={}) == Settings()
    with pytest.raises(SettingsError, match=r"modules.*None"):
        Settings.resolve(config_file=_file(tmp_path, "modules:\n"), environ={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top_k: many", r"top_k \(file .*\)' cannot be 'many'"),
        ("topk: 3", "unknown inferspan setting 'topk'.*did you mean 'top_k'"),
        ("1: 2", "unknown inferspan setting '1'"),
        ("- a\n- b", "must hold a mapping"),
        ("a: [1", "is not YAML"),
        ("preset: loud", "'preset' cannot be 'loud': use one of default, light, debug, development, production"),
        ("preset: [light]", "'preset' cannot be"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    """A wrong file is one error that names the setting, the value and what is allowed."""
    with pytest.raises(SettingsError, match=message):
        Settings.resolve(config_file=_file(tmp_path, text), environ={})


def test_unreadable_files(tmp_path: Path) -> None:
    """A file that is missing or no text is an error as well."""
    pytest.importorskip("yaml")
    with pytest.raises(SettingsError, match="cannot read its settings file"):
        Settings.resolve(config_file=tmp_path / "missing.yaml", environ={})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="is not YAML"):
        Settings.resolve(config_file=tmp_path / "binary.yaml", environ={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", -1), ("top_k", True), ("top_k", 1.5), ("logits", "maybe"), ("modules", "layer"), ("modules", []), ("modules", [1]),
        ("modules", {"a": 1}), ("steps", "some"), ("sampler_interval", float("nan")), ("sampler_interval", 0.5), ("session_file", ""),
        ("session_file", 3), ("capture_content", "true"), ("capture_content", None), ("operation", "talk"), ("semconv", None),
        ("max_content_chars", 10**9), ("model_name", " "), ("exit_timeout", -1),
    ],
)  # fmt: skip
def test_wrong_arguments(name: str, value: Any) -> None:
    """A wrong argument is an error that names the setting and the value."""
    with pytest.raises(SettingsError) as caught:
        Settings.resolve({name: value}, environ={})
    assert f"{name!r} cannot be {value!r}: use" in str(caught.value)


def test_unknown_argument() -> None:
    """An unknown name is an error that offers the nearest known one."""
    with pytest.raises(SettingsError, match=r"unknown inferspan setting 'moduls'.*did you mean 'modules'"):
        Settings.resolve({"moduls": "all"}, environ={})


def test_wrong_environment(caplog: pytest.LogCaptureFixture) -> None:
    """Wrong variables are warnings, one each, and the defaults count; empty ones are not set."""
    environ = {
        "INFERSPAN_SAMPLER_INTERVAL": "soon",
        "INFERSPAN_LOGITS": "maybe",
        "INFERSPAN_MODULES": "layer",
        "INFERSPAN_SESSION_FILE": "  ",
        CAPTURE_VARIABLE: "true",
    }
    assert Settings.resolve(environ=environ) == Settings()
    told = sorted(record.getMessage().split(" is ignored")[0] for record in caplog.records if record.levelno == logging.WARNING)
    assert told == sorted(f"{name}={value}" for name, value in environ.items() if value.strip())


def test_file_that_a_variable_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong in it is one warning that names the variable, and the rest of the file counts."""
    path = _file(tmp_path, "top_k: many\nnobody: 1\npreset: loud\nslow_after: 3\nsteps: sampled\n")
    found = Settings.resolve(environ={"INFERSPAN_CONFIG": str(path)})
    assert found == Settings(steps="sampled")
    assert [message.split("=")[0].split(":")[0] for message in caplog.messages] == ["INFERSPAN_CONFIG"] * 3
    assert [word in caplog.text for word in ("top_k", "nobody", "loud", "slow_after")] == [True] * 4


@pytest.mark.parametrize("text", ["a: [1", "- a", "a: 9" + "9" * 5000, "[" * 3000, "d: 2024-99-99"])
def test_broken_file_that_a_variable_names(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A file that holds no settings is one warning, and an error where an argument names it."""
    path = _file(tmp_path, text)
    assert Settings.resolve(environ={"INFERSPAN_CONFIG": str(path)}) == Settings()
    assert [message.split("=")[0] for message in caplog.messages] == ["INFERSPAN_CONFIG"]
    with pytest.raises(SettingsError):
        Settings.resolve(config_file=path, environ={})


@pytest.mark.parametrize("path", ["missing.yaml", "/", "/dev/zero"])
def test_file_that_cannot_be_read(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """A path that is no file is one warning, and is not read without end."""
    pytest.importorskip("yaml")
    assert Settings.resolve(environ={"INFERSPAN_CONFIG": path}) == Settings()
    assert [message.split("=")[0] for message in caplog.messages] == ["INFERSPAN_CONFIG"]


def test_source(tmp_path: Path) -> None:
    """Settings know which variable each value comes from, also by the file or preset that it names."""
    path = _file(tmp_path, "top_k: 2\nmark: true\n")
    environ = {"INFERSPAN_CONFIG": str(path), "INFERSPAN_PRESET": "light", "INFERSPAN_NVML": "no", "INFERSPAN_MARK": "no"}
    found = Settings.resolve({"steps": "none"}, environ=environ)
    expected = {"top_k": "INFERSPAN_CONFIG", "mark": "INFERSPAN_MARK", "nvml": "INFERSPAN_NVML", "modules": "INFERSPAN_PRESET"}
    assert {name: found.source(name) for name in expected} == expected
    assert (found.source("steps"), found.source("host")) == (None, None)
    assert Settings.resolve(config_file=path, environ={}).source("top_k") is None


def test_override() -> None:
    """An argument replaces a value and its source; what the environment says and no longer fits is dropped, wrong arguments raise."""
    found = Settings.resolve(environ={"INFERSPAN_KEEP": "slow", "INFERSPAN_SLOW_AFTER": "3", "INFERSPAN_MODULES": "a.*"})
    changed = found.override({"modules": "all", "keep": "errors"})
    assert changed == Settings(modules="all", keep="errors")
    assert (changed.source("modules"), found.override({}).source("modules")) == (None, "INFERSPAN_MODULES")
    assert found.override({}) == found
    with pytest.raises(SettingsError, match="unknown inferspan setting 'x'"):
        found.override({"x": 1})


def test_any_wrong_value_can_be_shown() -> None:
    """An error about a value that is huge, or has no text, is still a SettingsError of a readable length."""

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    values: list[Any] = [10**6000, "x" * 100_000, [[0] * 1000] * 1000, Silent()]
    for value in values:
        with pytest.raises(SettingsError) as caught:
            Settings(top_k=value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("arguments", "environ", "expected", "warned"),
    [
        ({}, {"INFERSPAN_SPAN_HARD_CAP": "100"}, (100, 100), False),
        ({"span_hard_cap": 100}, {}, (100, 100), False),
        ({}, {"INFERSPAN_MAX_SPANS_PER_TRACE": "9000"}, (2000, 5000), True),
        ({"span_hard_cap": 10_000}, {"INFERSPAN_MAX_SPANS_PER_TRACE": "9000"}, (9000, 10_000), False),
        ({"max_spans_per_trace": 300}, {"INFERSPAN_SPAN_HARD_CAP": "100"}, (300, 5000), True),
    ],
)
def test_budget(
    arguments: dict[str, Any], environ: dict[str, str], expected: tuple[int, int], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A low cap lowers the default budget, and a variable that contradicts is a warning."""
    found = Settings.resolve(arguments, environ=environ)
    assert (found.max_spans_per_trace, found.span_hard_cap) == expected
    assert bool(caplog.records) == warned


def test_budget_over_its_cap() -> None:
    """A budget over the cap that is asked for by name needs the cap by name; every step takes the whole cap."""
    with pytest.raises(SettingsError, match="pass span_hard_cap=9000 as well"):
        Settings(max_spans_per_trace=9000)
    assert (Settings().span_budget, Settings(every_step=True).span_budget) == (2000, 5000)


@pytest.mark.parametrize(
    ("mode", "emit", "expected"),
    [
        ("NO_CONTENT", None, (False, False)), ("span_only", None, (True, False)), ("EVENT_ONLY", None, (False, True)),
        ("SPAN_AND_EVENT", None, (True, True)), ("SPAN_AND_EVENT", False, (True, False)), ("NO_CONTENT", True, (False, False)),
        ("SPAN_ONLY", True, (True, False)),
    ],
)  # fmt: skip
def test_content(mode: str, emit: bool | None, expected: tuple[bool, bool]) -> None:
    """Content stands where its mode says, in any case of letters, and an event never without an event mode."""
    found = Settings(capture_content=mode, emit_event=emit)
    assert (found.content_on_spans, found.content_in_events) == expected


def test_stability_variable() -> None:
    """OpenTelemetry's opt-in chooses the latest names, unless our own variable says otherwise."""
    both = {STABILITY_VARIABLE: "http,gen_ai_latest_experimental"}
    assert Settings.resolve(environ=both).semconv == "latest"
    assert Settings.resolve(environ={**both, "INFERSPAN_SEMCONV": "legacy"}).semconv == "legacy"


def test_table() -> None:
    """Every setting has a variable of its own and a sentence."""
    rows = describe()
    assert len({variable for _, variable, _, _ in rows}) == len(rows) == len({name for name, *_ in rows})
    assert all(brief for *_, brief in rows)
    assert environment_name("capture_content") == CAPTURE_VARIABLE and environment_name("top_k") == "INFERSPAN_TOP_K"


def test_misspelt_variable(caplog: pytest.LogCaptureFixture) -> None:
    """A variable of ours that is no setting is warned of once, with the one that was meant; others' variables are not ours."""
    environ = {"INFERSPAN_MODULE": "all", "INFERSPAN_PRESET": "light", "OTHER_MODULE": "x", "INFERSPAN_STACK_JAEGER": "/bin/jaeger"}
    for _ in range(2):
        assert Settings.resolve({}, environ=environ) == Settings.resolve({}, preset="light", environ={})
    assert caplog.messages == ["INFERSPAN_MODULE is no setting and is ignored: did you mean INFERSPAN_MODULES?"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("always", "always"),
        ("slow", "slow"),
        (" Errors, slow ", "slow,errors"),
        (["nonfinite", "slow", "slow"], "slow,nonfinite"),
        (("marked",), "marked"),
        ("marked,findings", "findings,marked"),
    ],
)
def test_keep(value: Any, expected: str) -> None:
    """Words in any order and form are one text, so that equal settings are equal; it comes back as it went in."""
    found = Settings(keep=value)
    assert (found.keep, Settings(keep=found.keep)) == (expected, found)
    assert found.keep_words == (() if expected == "always" else tuple(expected.split(",")))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"keep": True}, "'keep' cannot be True: use \"always\", or one or more of slow, errors, nonfinite, findings, unhealthy, marked, such as \"slow,errors\"; to mark every request with inferspan.keep, use mark=True"),
        ({"keep": "always,slow"}, "'keep' cannot be 'always,slow': use \"always\", or one or more of"),
        ({"keep": "fast"}, "'keep' cannot be 'fast'"),
        ({"keep": []}, "'keep' cannot be []"),
        ({"keep": 3}, "'keep' cannot be 3"),
        ({"keep": ["slow", 3]}, "'keep' cannot be ['slow', 3]"),
        ({"slow_after": 2.0}, "'slow_after' cannot be 2.0: it decides nothing with keep='always'; add the word slow to keep"),
        ({"keep": "errors", "slow_quantile": 0.9}, "'slow_quantile' cannot be 0.9: it decides nothing with keep='errors'"),
        ({"keep": "slow", "slow_quantile": 1.0}, "'slow_quantile' cannot be 1.0: use a number from 0.5 to 0.999"),
        ({"keep": "slow", "slow_after": float("nan")}, "'slow_after' cannot be nan: use a number from 0 to 86400"),
        ({"keep": "slow", "slow_first_token": -1}, "'slow_first_token' cannot be -1"),
    ],
)
def test_wrong_keep(given: dict[str, Any], words: str) -> None:
    """What cannot be meant is one error that names the setting and what to do."""
    with pytest.raises(SettingsError) as error:
        Settings.resolve(given, environ={})
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("given", "environ", "expected", "warned"),
    [
        ({}, {"KEEP": "slow,errors", "SLOW_AFTER": "2.5"}, ("slow,errors", 2.5), ""),
        ({"keep": "slow", "slow_after": 3}, {"KEEP": "always"}, ("slow", 3.0), ""),
        ({"slow_after": 3}, {"KEEP": "always"}, ("always", None), ""),
        ({}, {"SLOW_AFTER": "2"}, ("always", None), "INFERSPAN_SLOW_AFTER=2.0 is ignored: it decides nothing unless INFERSPAN_KEEP has slow"),
        ({"keep": "slow"}, {"SLOW_AFTER": "2"}, ("slow", 2.0), ""),
        ({}, {"KEEP": "true"}, ("always", None), "INFERSPAN_KEEP=true is ignored"),
    ],
)
def test_keep_in_the_environment(
    caplog: pytest.LogCaptureFixture, given: dict[str, Any], environ: dict[str, str], expected: tuple[str, float | None], warned: str
) -> None:
    """Whoever runs a program may switch ``keep`` over; a variable that decides nothing is a warning, never an error."""
    found = Settings.resolve(given, environ={f"INFERSPAN_{name}": value for name, value in environ.items()})
    assert (found.keep, found.slow_after) == expected
    assert (warned in caplog.text) if warned else not caplog.text


@pytest.mark.parametrize(
    "value",
    [{"mode": "t2v", "run": 3}, "mode=t2v, run=3", "mode=t2v,run=3,", [("mode", "t2v"), ("run", 3)], (("mode", "t2v"), ("run", "3"))],
    ids=["mapping", "text", "text with a comma too many", "pairs", "as it is kept"],
)
def test_session_tags(value: Any) -> None:
    """Tags come as a mapping, as pairs, or as a text in the environment."""
    assert Settings(session_tags=value).session_tags == (("mode", "t2v"), ("run", "3"))


def test_session_tags_in_a_file(tmp_path: Path) -> None:
    """A settings file has them as a mapping."""
    path = _file(tmp_path, "session_tags:\n  mode: t2v\n  run: 3\n")
    assert Settings.resolve(config_file=path, environ={}).session_tags == (("mode", "t2v"), ("run", "3"))


@pytest.mark.parametrize("value", ["mode", 3, {"mode": None}, {1: "x"}, {"": "x"}, [1]], ids=repr)
def test_wrong_session_tags(value: Any) -> None:
    """Anything else is refused, and told with what is allowed."""
    with pytest.raises(SettingsError, match=r"session_tags.*use a mapping of texts"):
        Settings(session_tags=value)


@pytest.mark.parametrize("value", [{"confidence": 0.3, "loop_tokens": 64}, "confidence=0.3, loop_tokens=64", [("confidence", 0.3), ("loop_tokens", "64")]])
def test_thresholds(value: Any) -> None:
    """Thresholds come as a mapping, as pairs or as the text of a variable, and go back in as they came out."""
    found = Settings(thresholds=value).thresholds
    assert found == (("confidence", 0.3), ("loop_tokens", 64.0))
    assert Settings(thresholds=found).thresholds == found


@pytest.mark.parametrize("value", [{"confidence": 2}, {"confident": 0.5}, "confidence", {"confidence": "much"}, {"loop_tokens": math.nan}, 3])
def test_wrong_thresholds(value: Any) -> None:
    """A threshold that is unknown, no number or out of its range is refused by name."""
    with pytest.raises(SettingsError, match="thresholds"):
        Settings(thresholds=value)


LISTS = ("attention_heads", "methods", "include", "exclude", "observe", "stages", "keep", "gpu_metrics", "modules", "session_tags", "thresholds", "peaks")
NO_LISTS = [
    b"", b"\0\1", b"ab", bytearray(), bytearray(b"\1"), memoryview(b""), memoryview(b"\1"), array("i"), array("i", [0, 1]), set(), {"encode"},
    frozenset(), iter(()), (one for one in ("a",)), [True], [10**5000], 10**5000, [b"a"], {"mode": b"a"}, {"mode": 10**5000},
]  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("value", NO_LISTS, ids=lambda value: type(value).__name__)
def test_what_is_no_list_is_refused(name: str, value: Any) -> None:
    """Bytes are numbers for Python, and nobody's list; sets have no order, and a generator can be read once."""
    with pytest.raises(SettingsError, match=f"'{name}' cannot be"):
        Settings.resolve({name: value}, environ={})


@pytest.mark.parametrize("value", [[0, 1], (0, 1), range(2), "0,1", ["0", "1"], [0, 1, 0]], ids=repr)
def test_heads(value: Any) -> None:
    """From any list of numbers, or their text."""
    assert Settings(attention_heads=value).attention_heads == (0, 1)


@pytest.mark.parametrize("value", [[-1], [1.0], ["1.0"], ["\u00b2"], [10**6], [], [[1]], [None]], ids=repr)
def test_wrong_heads(value: Any) -> None:
    """Whole numbers from 0 only."""
    with pytest.raises(SettingsError, match="attention_heads"):
        Settings(attention_heads=value)


@pytest.mark.parametrize("value", [["ab"], [("a", "b", "c")], [{"a", "b"}]], ids=["text", "three", "set"])
def test_texts_are_no_pairs(value: Any) -> None:
    """One of two characters is no tag, although Python takes it apart."""
    with pytest.raises(SettingsError, match="session_tags"):
        Settings(session_tags=value)


@pytest.mark.parametrize("value", [b"", bytearray(), memoryview(b"")], ids=lambda value: type(value).__name__)
def test_patterns_of_a_stage_are_no_bytes(value: Any) -> None:
    """Not even empty ones, which would mean its usual modules."""
    stages: Any = {"vision_encode": value}
    with pytest.raises(SettingsError, match="stages"):
        Settings(stages=stages)


@pytest.mark.parametrize("value", [(1,), ("flops",), (("flops", True),), {"flops": 10**400}], ids=["number", "name", "true", "too large"])
def test_wrong_peaks(value: Any) -> None:
    """Each is refused by name."""
    with pytest.raises(SettingsError, match="peaks"):
        Settings(peaks=value)
