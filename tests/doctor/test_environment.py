"""Wrong set-ups of the environment, planted: each gives the problem and the fix."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import inferspan
from tests.doctor.conftest import Doctor


@pytest.fixture
def file(tmp_path: Path) -> dict[str, str]:
    """A destination, so that there is no problem but the planted one."""
    return {"INFERSPAN_SESSION_FILE": str(tmp_path / "session.jsonl")}


def test_a_good_environment_has_no_problem(doctor: Doctor, file: dict[str, str]) -> None:
    """The session file can be written, and the doctor leaves none behind."""
    told = doctor(**file)
    assert (told.whole["problems"], told.whole["ok"], told.code) == ([], True, 0)
    assert not Path(file["INFERSPAN_SESSION_FILE"]).exists()


def test_every_topic_is_there(doctor: Doctor, file: dict[str, str]) -> None:
    """Programs can rely on their names."""
    assert list(doctor(**file).whole["topics"]) == [
        "versions", "extension", "program", "environment", "settings", "providers", "session file", "endpoints", "emitted", "nvml", "cuda",
    ]  # fmt: skip


def test_a_misspelt_variable_of_ours(doctor: Doctor, file: dict[str, str]) -> None:
    """The right name is suggested; the value may be a secret and is not shown."""
    told = doctor(**file, INFERSPAN_MODULE="s3cret")
    assert told.problems == {"INFERSPAN_MODULE": ("nobody reads it", "did you mean INFERSPAN_MODULES?")}
    assert "s3cret" not in told.text


def test_a_misspelt_variable_of_opentelemetry(doctor: Doctor, file: dict[str, str]) -> None:
    """OpenTelemetry says nothing about those; the doctor does."""
    told = doctor(**file, OTEL_EXPORTER_OTLP_ENDPIONT="http://user:s3cret@collector", OTEL_EXPORTER_OTLP_HEADER="authorization=s3cret")
    assert {name: fix for name, (_, fix) in told.problems.items()} == {
        "OTEL_EXPORTER_OTLP_ENDPIONT": "did you mean OTEL_EXPORTER_OTLP_ENDPOINT?",
        "OTEL_EXPORTER_OTLP_HEADER": "did you mean OTEL_EXPORTER_OTLP_HEADERS?",
    }
    assert "s3cret" not in told.text


def test_a_variable_in_small_letters(doctor: Doctor, file: dict[str, str]) -> None:
    """Names of variables have capitals, except on Windows."""
    told = doctor(**file, otel_service_name="shop")
    assert told.problems["otel_service_name"][1] == "did you mean OTEL_SERVICE_NAME?"


def test_every_problem_has_a_fix(doctor: Doctor) -> None:
    """Also in a set-up where everything is wrong."""
    told = doctor(
        INFERSPAN_SESSION_FILE="/nowhere/s.jsonl", INFERSPAN_TOPK="1", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_TRACES_SAMPLER="x"
    )
    findings = [*told.whole["problems"], *told.whole["warnings"]]
    assert len(findings) >= 4
    assert [finding["name"] for finding in findings if not finding["fix"]] == []


def test_variables_of_other_libraries_are_no_problem(doctor: Doctor, file: dict[str, str]) -> None:
    """What is near to nothing known is a note."""
    told = doctor(**file, OTEL_INSTRUMENTATION_HTTP_CAPTURE_SOMETHING_NEW="1")
    assert told.topic("environment")["OTEL_INSTRUMENTATION_HTTP_CAPTURE_SOMETHING_NEW"]["state"] == "note"
    assert told.code == 0


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("INFERSPAN_PRESET", "fast", "use one of default, light, debug"),
        ("INFERSPAN_TOP_K", "many", "use a whole number from 0 to 100"),
        ("INFERSPAN_CONFIG", "/nowhere/settings.yaml", "No such file or directory"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "use grpc or http/protobuf"),
        ("OTEL_TRACES_EXPORTER", "prometheus", "use otlp, console, none, or a list of them"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "it must be one of always_on"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "there is no such file"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-3", "it must be a whole number that is not negative"),
        ("OTEL_SDK_DISABLED", "true", "unset it, or set it to false"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "yes", "use one of NO_CONTENT"),
    ],
)
def test_a_wrong_value_has_its_fix(doctor: Doctor, file: dict[str, str], name: str, value: str, fix: str) -> None:
    """The variable is named, and what may stand in it."""
    told = doctor("--no-send", **file, **{name: value})
    assert fix in told.problems[name][1]
    assert told.code == 1


def test_a_session_file_that_cannot_be_written(doctor: Doctor, tmp_path: Path) -> None:
    """The path, the reason, and the variable that names it."""
    path = tmp_path / "missing" / "session.jsonl"
    value, fix = doctor(INFERSPAN_SESSION_FILE=str(path)).problems["session file"]
    assert value == f"{path} cannot be written: No such file or directory"
    assert fix == "name a file in a folder that can be written (INFERSPAN_SESSION_FILE)"


def test_an_existing_session_file_stays_as_it_is(doctor: Doctor, file: dict[str, str]) -> None:
    """Looking at it neither empties nor removes it."""
    path = Path(file["INFERSPAN_SESSION_FILE"])
    path.write_text("")
    assert doctor(**file).code == 0
    assert path.exists()


def test_secrets_are_not_shown(doctor: Doctor, file: dict[str, str]) -> None:
    """Users, passwords, queries, tokens and keys stay out of the result, in whatever variable they are."""
    told = doctor(
        "--no-send", **file,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://me:hush1@127.0.0.1:9/base?key=hush2",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20hush3,x-key=hush4",
        OTEL_EXPORTER_OTLP_TRACES_HEADERS="hush5",
        OTEL_EXPORTER_OTLP_CLIENT_KEY="hush6",
        OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER="hush7",
        INFERSPAN_API_TOKEN="hush8",
    )  # fmt: skip
    assert "hush" not in told.text
    assert told.topic("environment")["OTEL_EXPORTER_OTLP_HEADERS"]["value"] == "authorization=***, x-key=***"


def test_settings_have_their_sources(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """Environment, file and preset are told apart."""
    pytest.importorskip("yaml")
    settings = tmp_path / "settings.yaml"
    settings.write_text("top_k: 7\n")
    found = doctor(**file, INFERSPAN_MODULES="all", INFERSPAN_CONFIG=str(settings)).topic("settings")
    assert {name: (found[name]["value"], found[name]["source"]) for name in ("modules", "top_k")} == {
        "modules": ("all", "environment INFERSPAN_MODULES"),
        "top_k": ("7", f"file {settings} (INFERSPAN_CONFIG)"),
    }
    assert doctor(**file, INFERSPAN_PRESET="light").topic("settings")["steps"]["source"] == "preset light (INFERSPAN_PRESET)"


def copy_of_the_package(folder: Path) -> str:
    """The package without its compiled extension."""
    source = Path(inferspan.__file__).parent
    shutil.copytree(source, folder / "inferspan", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    return str(folder)


def test_without_the_extension(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """It works and is slower: a warning with the way to build it."""
    told = doctor(**file, PYTHONPATH=copy_of_the_package(tmp_path / "copy"))
    finding = told.topic("extension")["C extension"]
    assert finding["state"] == "warning"
    assert "was not built" in finding["value"]
    assert "install a C compiler and the headers of Python" in finding["fix"]
    assert told.code == 0


def test_an_extension_that_does_not_load(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """It was built for something else: install again."""
    folder = copy_of_the_package(tmp_path / "copy")
    (Path(folder) / "inferspan" / "capture" / "modules" / "_recorder.abi3.so").write_bytes(b"no library")
    value, fix = doctor(**file, PYTHONPATH=folder).problems["C extension"]
    assert "does not load" in value
    assert fix.startswith("pip install --no-cache-dir --force-reinstall --no-deps inferspan")


def test_an_extension_that_is_switched_off(doctor: Doctor, file: dict[str, str]) -> None:
    """That was a choice."""
    assert doctor(**file, INFERSPAN_EXTENSION="0").topic("extension")["C extension"]["state"] == "note"


def test_what_is_emitted_follows_the_settings(doctor: Doctor, file: dict[str, str]) -> None:
    """Content, sampling and rank among it."""
    found = doctor(
        **file, OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY", OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.1",
        RANK="1", WORLD_SIZE="4", INFERSPAN_NVML="0",
    ).topic("emitted")  # fmt: skip
    names = ("prompts and outputs", "traces sampled", "rank", "machine")
    assert [found[name]["value"] for name in names] == ["on spans", "traceidratio 0.1", "rank 1, world_size 4", "process and host, allocator every 5 s"]


# --------------------------------------------------------------------------------------------------------------- machine
FAKE_NVML = """
class NVMLError(Exception):
    def __init__(self, value):
        super().__init__({3: "Not Supported", 4: "Insufficient Permissions", 12: "NVML Shared Library Not Found", 18: "Driver/library version mismatch"}[value])
        self.value = value
NVML_TEMPERATURE_GPU = 0
NVML_PCIE_UTIL_TX_BYTES = 0
class Memory: total = 80 << 30
class Support: isSupportedDevice = 1
def nvmlInit(): INIT
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlSystemGetDriverVersion(): return "570.1"
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "Fake H200"
def nvmlDeviceGetMemoryInfo(handle): return Memory
def nvmlDeviceGetUtilizationRates(handle): return 0
def nvmlDeviceGetPowerUsage(handle): raise NVMLError(4)
def nvmlDeviceGetTotalEnergyConsumption(handle): raise NVMLError(3)
def nvmlDeviceGetTemperature(handle, sensor): return 30
def nvmlDeviceGetPcieThroughput(handle, counter): return 0
def nvmlDeviceGetComputeRunningProcesses(handle): return []
def nvmlGpmQueryDeviceSupport(handle): return Support
def nvmlGpmSampleAlloc(): return 1
def nvmlGpmSampleGet(handle, sample): raise NVMLError(4)
def nvmlGpmSampleFree(sample): pass
"""


def stand_in(folder: Path, name: str, text: str) -> dict[str, str]:
    """A module that is found instead of another one."""
    folder.mkdir()
    (folder / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(folder)}


def test_nvml_package_that_is_missing(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """The package is ours to need: pip installs it."""
    told = doctor(**file, **stand_in(tmp_path / "other", "pynvml", "raise ImportError('no pynvml here')"))
    assert told.problems["NVML"] == ("its Python package cannot be imported (no pynvml here)", "pip install nvidia-ml-py")


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this host has a GPU")
def test_nvml_library_that_is_missing(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """Without a GPU there is nothing to fix."""
    told = doctor(**file, **stand_in(tmp_path / "other", "pynvml", FAKE_NVML.replace("INIT", "raise NVMLError(12)")))
    assert told.topic("nvml")["NVML"]["value"] == "this host has no NVIDIA driver: no readings of GPUs"
    assert told.code == 0


def test_nvml_that_does_not_fit_its_driver(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """After an update of the driver."""
    told = doctor(**file, **stand_in(tmp_path / "other", "pynvml", FAKE_NVML.replace("INIT", "raise NVMLError(18)")))
    assert told.problems["NVML"] == ("Driver/library version mismatch", "the driver was updated while it ran: restart the machine")


def test_permissions_of_readings_and_gpm(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """What is refused is told from what the card lacks; both are warnings or notes, for the rest works."""
    told = doctor(**file, **stand_in(tmp_path / "other", "pynvml", FAKE_NVML.replace("INIT", "pass")))
    found = told.topic("nvml")
    assert found["NVML"]["value"] == "driver 570.1, 1 GPU"
    assert found["GPU 0"]["value"] == "Fake H200, 80 GiB"
    fixes = {finding["name"]: (finding["value"], finding["fix"]) for finding in told.whole["warnings"]}
    assert fixes["GPU 0 readings"] == ("not allowed: power", "let this user open /dev/nvidiactl and /dev/nvidia*")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in fixes["GPU 0 GPM"][1]


def test_a_torch_that_cannot_be_imported(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """A broken installation is a problem of its own."""
    told = doctor(**file, **stand_in(tmp_path / "other", "torch", "raise OSError('libcudart.so.12: cannot open shared object file')"))
    assert "libcudart.so.12" in told.problems["torch"][0]


@pytest.mark.skipif(not hasattr(os, "kill"), reason="no signals")
def test_a_torch_that_crashes_costs_its_topic_only(doctor: Doctor, file: dict[str, str], tmp_path: Path) -> None:
    """The rest has been found by then, and the crash is named."""
    told = doctor(**file, **stand_in(tmp_path / "other", "torch", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"))
    assert told.problems["doctor"][0].startswith("it was ended by SIGSEGV while looking at cuda")
    assert told.topic("session file")["session file"]["state"] == "ok"


def test_the_real_torch_is_looked_at(doctor: Doctor, file: dict[str, str]) -> None:
    """With the torch that is installed, CUDA has a finding that is no failure of the doctor."""
    told = doctor(real_torch=True, **file)
    assert "CUDA" in told.topic("cuda")
    assert told.topic("versions")["torch"]["state"] == "ok"
