"""``observe``: kinds of figures by name, as an argument, in the environment, on the command line and at run time."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import semconv
from inferspan.cli import main
from inferspan.setting_sources.observe import KINDS, kinds
from inferspan.settings import Settings, SettingsError
from tests.cases.telemetry import Telemetry

NAMES = {item.name for item in fields(Settings)}


@pytest.mark.parametrize("given", ["activation,debug", "debug, Activation", ["activation", "debug"]], ids=str)
def test_kinds_turn_settings_on(given: Any) -> None:
    """From a text or a list, in any order and case."""
    settings = Settings.resolve({"observe": given}, environ={})
    assert (settings.observe, settings.output_stats, settings.numerics) == (("activation", "debug"), True, "all")


def test_one_kind_leaves_the_others() -> None:
    """Any subset, none among them."""
    assert Settings.resolve({"observe": "activation"}, environ={}).numerics == "none"
    assert Settings.resolve({"observe": ""}, environ={}) == Settings.resolve({}, environ={})


def test_a_setting_that_is_given_keeps_its_value() -> None:
    """The switch is for those at their defaults."""
    assert Settings.resolve({"observe": "debug", "numerics": "layers"}, environ={}).numerics == "layers"


@pytest.mark.parametrize("given", ["activation,bogus", ["gradient"], 3, [1]], ids=str)
def test_what_is_unknown_is_refused(given: Any) -> None:
    """By its name, with those that are known."""
    with pytest.raises(SettingsError, match=r"'observe' cannot be .*use some of activation,.* debug") as caught:
        Settings.resolve({"observe": given}, environ={})
    assert all(word in str(caught.value) for word in ("bogus", "gradient") if word in str(given))


def test_a_kind_without_its_settings_is_unknown() -> None:
    """One whose setting this version does not have is refused by its name; with the setting it is taken."""
    for kind, stands_for in KINDS.items():
        assert kinds("observe", kind, [*stands_for]) == (kind,)
        with pytest.raises(SettingsError, match=f"'{kind}' is unknown"):
            kinds("observe", kind, NAMES.difference(stands_for))


def test_the_environment_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    """A kind that is unknown is a warning there."""
    assert Settings.resolve({}, environ={"INFERSPAN_OBSERVE": "debug"}).numerics == "all"
    assert Settings.resolve({}, environ={"INFERSPAN_OBSERVE": "debug,nonsense"}).numerics == "none"
    assert "INFERSPAN_OBSERVE=debug,nonsense is ignored" in caplog.text


def test_it_switches_at_run_time(telemetry: Telemetry) -> None:
    """Kinds that are no longer named are off again; settings that are named in the same call win."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    handle = telemetry.instrument(model, modules="all")
    handle.set(observe="activation,debug")
    model(torch.ones(1, 4))
    assert handle.numerics().calls == 2
    assert semconv.OUTPUT_STAT_MEAN in dict(telemetry.modules()[-1].attributes or {})
    handle.set(observe="debug", numerics="layers")
    assert (handle.settings.output_stats, handle.settings.numerics) == (False, "layers")
    handle.set(observe=())
    assert (handle.settings.output_stats, handle.settings.numerics) == (False, "layers")
    handle.set(numerics="none", observe="activation")
    handle.set(observe=())
    assert (handle.settings.output_stats, handle.settings.numerics) == (False, "none")


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """``inferspan run`` refuses what is unknown before the program starts."""
    assert main(["run", "--observe", "debug,nonsense", "missing.py"]) == 2
    assert "'nonsense' is unknown, use some of activation" in capsys.readouterr().err
