"""Ceilings of devices: the table of cards, the setting, and a measured CPU."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import inferspan
from inferspan import semconv
from inferspan.cli.main import main
from inferspan.roofline.cards import CARDS, Card
from inferspan.roofline.cpu_peak import keep, measure
from inferspan.roofline.peaks import Peaks, cpu_name, peaks_of
from tests.cases.telemetry import Telemetry


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA H200 NVL", 4.8e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12),
        ("NVIDIA A100 80GB PCIe", 1.935e12),
        ("NVIDIA A100-SXM4-40GB", 1.555e12),
        ("NVIDIA A10", 0.6e12),
        ("NVIDIA L4", 0.3e12),
        ("NVIDIA L40S", 0.864e12),
        ("Tesla T4", 0.32e12),
        ("Tesla V100-SXM2-16GB", 0.9e12),
        ("NVIDIA GeForce RTX 4090", 1.008e12),
        ("AMD Instinct MI300X", 5.3e12),
    ],
)
def test_card_by_the_name_of_its_driver(name: str, bandwidth: float) -> None:
    """The row of the variant is found, not that of a card whose name begins likewise."""
    peaks = peaks_of("cuda", name, "bfloat16")
    assert peaks is not None
    assert peaks.bandwidth == bandwidth


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A10G", "NVIDIA GH200 480GB", "NVIDIA L40", "Tesla V100S-PCIE-32GB", "NVIDIA H20", "AMD Instinct MI250",
    ],
)  # fmt: skip
def test_variants_without_a_row_and_parts_of_cards(name: str) -> None:
    """The ceilings of the card that they are named after are not theirs."""
    assert peaks_of("cuda", name, "float16") is None


@pytest.mark.parametrize(
    ("name", "dtype", "flops"),
    [
        # Data sheets of the makers, dense.
        ("NVIDIA B200", "bfloat16", 2250e12), ("NVIDIA H200", "float8_e4m3fn", 1978.9e12), ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA H100 NVL", "bfloat16", 835.5e12), ("NVIDIA A100-PCIE-40GB", "float64", 19.5e12), ("NVIDIA L4", "float16", 121e12),
        ("NVIDIA L40S", "bfloat16", 362.05e12), ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2e12), ("NVIDIA GeForce RTX 4090", "int8", 660.6e12),
        ("NVIDIA GeForce RTX 4090", "float8_e4m3fn", 330.3e12), ("NVIDIA GeForce RTX 3090", "float16", 71e12), ("Tesla T4", "float16", 65e12),
        ("Tesla V100-PCIE-16GB", "float16", 112e12), ("AMD Instinct MI300X", "float8_e4m3fnuz", 2614.9e12),
        ("AMD Instinct MI300X", "float8_e4m3fn", None), ("AMD Instinct MI250X", "float16", 191.5e12),
        ("AMD Instinct MI250X", "float32", 47.85e12), ("AMD Instinct MI250X", "float64", 47.85e12),
    ],
)  # fmt: skip
def test_ceiling_of_a_dtype(name: str, dtype: str, flops: float | None) -> None:
    """Sums of products of 8-bit floats are in float32; AMD's matrix units compute float32 and float64, too."""
    peaks = peaks_of("cuda", name, dtype)
    assert peaks is not None
    assert peaks.flops == flops


def test_unknown_card() -> None:
    """Of a card that is not in the table nothing is said."""
    assert peaks_of("cuda", "NVIDIA GeForce RTX 9999", "bfloat16") is None


def test_dtype_decides_about_the_ceiling() -> None:
    """float32 is computed by other units than bfloat16."""
    assert [peaks_of("cuda", "NVIDIA H200", dtype).flops for dtype in ("bfloat16", "tf32", "float32")] == [989.4e12, 494.7e12, 66.9e12]  # type: ignore[union-attr]


def test_dtype_that_a_card_lacks() -> None:
    """Its bandwidth is known all the same."""
    assert peaks_of("cuda", "Tesla T4", "bfloat16") == Peaks(None, 0.32e12)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_each_card_names_its_source(card: Card) -> None:
    """A reader can check the figures."""
    assert card.source.startswith("https://")


def test_setting_counts_before_the_table() -> None:
    """A ceiling that the user gives replaces that of the table, the other one stays."""
    assert peaks_of("cuda", "NVIDIA H200", "bfloat16", {"bandwidth": 4e12}) == Peaks(989.4e12, 4e12)


@pytest.mark.parametrize("given", [{"flops": 2e12, "bandwidth": 1e11}, "flops=2e12,bandwidth=1e11"], ids=["mapping", "text"])
def test_setting_on_the_request(telemetry: Telemetry, given: object) -> None:
    """The request says which ceilings were assumed."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    telemetry.instrument(model, peaks=given)
    model(torch.ones(2, 4))
    (request,) = telemetry.roots()
    attributes = request.attributes or {}
    assert attributes[semconv.DEVICE_PEAK_FLOPS] == 2e12
    assert attributes[semconv.DEVICE_PEAK_BANDWIDTH] == 1e11
    assert 0 < attributes[semconv.DEVICE_PEAK_SHARE] <= 1  # type: ignore[operator]


@pytest.mark.parametrize("given", [{}, {"flops": 0}, {"flops": "many"}, {"speed": 1e12}, "flops", 3, {"flops": float("nan")}, {"flops": True}])
def test_setting_that_says_nothing(given: object) -> None:
    """A wrong value is refused with what is allowed."""
    with pytest.raises(inferspan.SettingsError, match="flops=989e12"):
        inferspan.Settings(peaks=given)  # type: ignore[arg-type]


def test_cpu_is_unknown_until_it_is_measured(tmp_path: Path) -> None:
    """Nothing is measured by itself."""
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert peaks_of("cpu", None, "float32", threads=1, environ=environ) is None


def test_measured_cpu(tmp_path: Path) -> None:
    """What was measured once counts for models on as many threads."""
    environ, threads = {"XDG_CACHE_HOME": str(tmp_path)}, torch.get_num_threads()
    found = measure(0.001, side=64, copied=2**16)
    path = keep(found, environ)
    assert path.parent.parent == tmp_path
    assert peaks_of("cpu", None, "float32", threads=threads, environ=environ) == Peaks(found["float32"], found["bandwidth"])
    assert peaks_of("cpu", None, "float32", threads=threads + 1, environ=environ) is None


def test_measurement_takes_the_fastest() -> None:
    """Of several repetitions the fastest one counts: others were disturbed."""
    times = iter([0.0, *(value for _ in range(5) for value in (0.0, 1.0, 2.0, 2.5, 2.5, 4.0, 9.0))])
    now = [0.0]

    def clock() -> float:
        now[0] = max(now[0], next(times, now[0] + 1.0))
        return now[0]

    found = measure(3.0, side=8, copied=64, clock=clock)
    assert found["float32"] == pytest.approx(2 * 8**3 / 0.5)


def test_slow_products_are_measured_with_small_matrices() -> None:
    """Where a product of 256 rows takes a second, one of 2048 would take 512."""
    ticks = itertools.count()
    found = measure(0.5, copied=64, clock=lambda: float(next(ticks)))
    assert found["float32"] == pytest.approx(2 * 256**3)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"a": 3}', "{broken"])
def test_damaged_cache_is_no_cache(tmp_path: Path, text: str) -> None:
    """A file that cannot be read says nothing, and nothing fails."""
    (tmp_path / "inferspan").mkdir()
    (tmp_path / "inferspan" / "peaks.json").write_text(text)
    assert peaks_of("cpu", None, "float32", threads=1, environ={"XDG_CACHE_HOME": str(tmp_path)}) is None


def test_command_lists_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``inferspan peaks`` shows the table and measures nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["peaks"]) == 0
    shown = capsys.readouterr().out
    assert "H200 " in shown
    assert "inferspan peaks --measure" in shown
    assert list(tmp_path.iterdir()) == []


def test_command_shows_a_measured_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A CPU that was measured stands first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep({"float32": 2e11, "bandwidth": 3e10})
    assert main(["peaks"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith(cpu_name()[:20])
    assert "float32 0.2" in line


def test_command_measures_for_a_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program with as many threads finds the figures, and the text says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    threads = torch.get_num_threads()
    try:
        assert main(["peaks", "--measure", "--seconds", "0.001", "--threads", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
    first, _, line, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("measured with 1 thread, and kept in ")
    assert ", 1 thread  " in line
    assert peaks_of("cpu", None, "float32", threads=1) is not None


@pytest.mark.parametrize("options", [["--threads", "2"], ["--seconds", "2"]])
def test_command_refuses_options_of_a_measurement_without_one(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """They would do nothing."""
    assert main(["peaks", *options]) == 2
    assert "add --measure" in capsys.readouterr().err


def test_command_refuses_an_endless_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    """The time of a measurement is limited."""
    assert main(["peaks", "--measure", "--seconds", "1000"]) == 2
    assert "at most 60" in capsys.readouterr().err
