"""``attempt_trace`` and ``inferspan trace-graph``: what they read, print and return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

from inferspan import graph
from inferspan.cli import main
from tests.graph import breaking, models

pytestmark = pytest.mark.filterwarnings("ignore")
LINE = "traced Qwen2VLForConditionalGeneration into 29 subgraphs (28 Qwen2VLDecoderLayer, ignored: lm_head, model.visual)"


class OwnLlama(hf.LlamaForCausalLM):
    """A definition of one's own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a Qwen2-VL as large as the one of 2 billion weights, and nothing else."""
    config = models.qwen2_vl_config(28)
    config.text_config.hidden_size, config.text_config.intermediate_size, config.text_config.vocab_size = 1536, 8960, 151936
    config.text_config.num_attention_heads, config.text_config.num_key_value_heads = 12, 2
    config.text_config.rope_parameters["mrope_section"] = [16, 24, 24]
    config.vision_config.hidden_size = 1536
    config.architectures = ["Qwen2VLForConditionalGeneration"]
    path = tmp_path_factory.mktemp("qwen2_vl")
    config.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a tiny Qwen2-VL."""
    config = models.qwen2_vl_config()
    config.architectures = ["Qwen2VLForConditionalGeneration"]
    path = tmp_path_factory.mktemp("tiny")
    config.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a tiny Llama."""
    path = tmp_path_factory.mktemp("llama")
    hf.LlamaConfig(**models.TEXT).save_pretrained(path)
    return path


def test_success_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The configuration alone is enough; first lines name model, class, inputs, targets and what each ignored entry matches."""
    written = [tmp_path / name for name in ("graph.json", "graph.svg", "graph.dot")]
    files = ["--json", str(written[0]), "--svg", str(written[1]), "--dot", str(written[2])]
    arguments = ["trace-graph", str(folder), "--target", "Qwen2VLDecoderLayer", "--ignore", "lm_head", "--ignore", "re:.*visual.*"]
    assert main([*arguments, *files]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"model: {folder}",
        "class: Qwen2VLForConditionalGeneration",
        "sample inputs: input_ids int64 [1, 64], attention_mask int64 [1, 64], use_cache False",
        "targets: Qwen2VLDecoderLayer (28 modules)",
        "ignored: lm_head -> lm_head; re:.*visual.* -> model.visual",
        LINE,
    ]
    read = json.loads(written[0].read_text(encoding="utf-8"))
    assert read["ok"] is True
    assert len(read["graph"]["subgraphs"]) == 29
    assert written[1].read_text(encoding="utf-8").startswith("<svg")
    assert written[2].read_text(encoding="utf-8").startswith("digraph")


def test_json_goes_to_standard_output_alone(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that it can be piped; the text goes to standard error, and two outputs do not fit."""
    assert main(["trace-graph", str(llama), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["summary"] in err
    assert main(["trace-graph", str(llama), "--json", "-", "--svg", "-"]) == 2


def test_a_failure_is_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    """With its reason, place and note; there is no picture of it, and the exit code is 1."""
    picture = tmp_path / "graph.svg"
    arguments = ["--modality", "image", "--ignore", "re:.*visual", "--length", "16", "--svg", str(picture)]
    assert main(["trace-graph", str(tiny), "--json", "-", *arguments]) == 1
    out, err = capsys.readouterr()
    read = json.loads(out)
    assert read["reason"] == "value_size"
    assert read["where"]["modules"] == ["", "model"]
    assert "there is no graph to draw" in err
    assert not picture.exists()


def test_all_modalities_are_one_table(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text can be traced, an image not: both are told, and the exit code is 1."""
    assert main(["trace-graph", str(tiny), "--modality", "all", "--ignore", "lm_head", "--ignore", "re:.*visual.*", "--length", "16"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split(maxsplit=2) == ["text", "yes", LINE.replace("29", "3").replace("28", "2")]
    assert lines[3].split(maxsplit=2)[:2] == ["image", "no"]
    assert any("no ignore list can help" in line for line in lines[4:])


def test_verbose_has_a_line_for_each_subgraph(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Index, target, operators, bytes of weights, and what it takes and gives."""
    assert main(["trace-graph", str(llama), "--verbose", "--ignore", "lm_head"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines if line.startswith("  ") and line[2].isdigit()] == [
        "  0: model.layers.0", "  1: model.layers.1", "  2: rest",
    ]
    assert any(line.startswith("  ignored: lm_head (Linear): 12.5 KiB of weights as one block") for line in lines)


def test_an_own_definition_is_tried(llama: Path) -> None:
    """As a class, and as package.module:Class."""
    for model_class in (OwnLlama, f"{__name__}:OwnLlama"):
        result = graph.attempt_trace(str(llama), model_class, show=False)
        assert result.model_class == "OwnLlama"
        assert result.ok


def test_the_class_is_that_of_the_configuration(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name in the configuration the automatic model decides; the result is printed."""
    result = graph.attempt_trace(str(llama), ignore=["lm_head"])
    assert result.model_class == "LlamaForCausalLM"
    assert result.targets_from == "_no_split_modules"
    assert result.graph is not None
    assert all(parameter.device.type == "meta" for parameter in result.graph.model.parameters())
    assert capsys.readouterr().out == f"{result}\n"


def test_multimodal_data_takes_the_other_modality() -> None:
    """A model of text and images is tried on an image."""
    with torch.device("meta"):
        model, _, ignore = models.llava()
    result = graph.attempt_trace(model.eval(), multimodal_data=True, ignore=ignore, show=False)
    assert "pixel_values" in result.inputs
    assert result.ok


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere"], "nowhere"),
        (["{llama}", "--target", "LlamaDecoderlayer"], "the closest class names are LlamaDecoderLayer"),
        (["{llama}", "--model-class", "no.such:Model"], "no class 'no.such:Model'"),
        (["{llama}", "--modality", "image"], "takes no image"),
        (["{llama}", "--modality", "all", "--svg", "x.svg"], "need one modality"),
    ],
    ids=["model", "target", "class", "modality", "table"],
)
def test_wrong_arguments_are_exit_code_2(arguments: list[str], text: str, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error names what is wrong."""
    assert main(["trace-graph", *(argument.format(llama=llama) for argument in arguments)]) == 2
    assert text in capsys.readouterr().err


def test_a_pattern_that_matches_nothing_is_a_warning_of_the_command(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, with the pattern that is meant."""
    assert main(["trace-graph", str(llama), "--ignore", "re:layers.0.mlp"]) == 0
    assert "'re:.*layers.0.mlp' matches model.layers.0.mlp" in capsys.readouterr().err


def test_help_of_the_command_has_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` says how it ends."""
    with pytest.raises(SystemExit):
        main(["trace-graph", "--help"])
    assert "1 it cannot be traced" in capsys.readouterr().out


def test_a_model_without_a_configuration_needs_a_sample() -> None:
    """The error says what to give."""
    with pytest.raises(ValueError, match="give sample inputs of your own"):
        graph.attempt_trace(breaking.Branch(), show=False)
