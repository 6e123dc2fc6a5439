"""Paths that have the process in them."""

from __future__ import annotations

import os

import pytest

from inferspan.ranks import filled
from inferspan.settings import Settings, SettingsError

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}


def test_a_path_has_the_rank_of_the_process() -> None:
    """As torchrun sets it."""
    assert filled("r{rank}-{local_rank}-{world_size}.jsonl", TORCHRUN) == "r3-1-8.jsonl"


def test_without_a_launcher_there_is_one_rank() -> None:
    """A program that is started by hand is rank 0 of 1."""
    assert filled("r{rank}-{local_rank}-{world_size}", {}) == "r0-0-1"


def test_a_path_has_the_process_number() -> None:
    """That of the process that asks, not of the one that set it up."""
    assert filled("{pid}", {}) == str(os.getpid())


def test_the_name_of_the_host_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the host is called."""
    monkeypatch.setattr("socket.gethostname", lambda: "a/../b")
    assert filled("{host}", {}) == "a_.._b"


def test_other_braces_stay() -> None:
    """They are characters of a path like others."""
    assert filled("{}-{x y}", TORCHRUN) == "{}-{x y}"


@pytest.mark.parametrize("word", ["{Rank}", "{ranks}", "{id}"])
def test_a_misspelt_place_is_an_error(word: str) -> None:
    """Else all ranks would write to one file, with the braces in its name."""
    with pytest.raises(SettingsError, match=r"use \{rank\}, \{local_rank\}"):
        Settings(session_file=f"s-{word}.jsonl")
