"""Pictures: boxes, frames, links and folds; DOT and SVG that hold against any name."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from inferspan import graph
from tests.graph import breaking, models

pytestmark = pytest.mark.filterwarnings("ignore")
SVG = "{http://www.w3.org/2000/svg}"


class Residual(nn.Module):
    """Two layers, a skip over both, and an ignored head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = self.layers[1](self.layers[0](y))
        return self.head(z + y)


@pytest.fixture(scope="module")
def residual() -> graph.Picture:
    """The picture of the hand-made model."""
    return graph.trace(Residual(), {"x": torch.randn(3, 4)}, None, ["head"]).picture()


@pytest.fixture(scope="module")
def deep() -> graph.Graph:
    """A Llama of 28 layers without weights."""
    with torch.device("meta"):
        model, _, ignore = models.llama(28)
    return graph.trace(model.eval(), models.ids(), None, ignore)


def test_targets_and_ignored_modules_are_one_box_each(residual: graph.Picture) -> None:
    """With path, class and weights, and nothing of the inside."""
    boxes = [(box.kind, box.path, box.module_class, box.parameter_bytes, box.frame) for box in residual.boxes]
    assert boxes == [
        ("input", "x", "", 0, None),
        ("module", "", "Residual", 0, 0),
        ("target", "layers.0", "Linear", 80, 0),
        ("target", "layers.1", "Linear", 80, 1),
        ("module", "", "Residual", 0, 2),
        ("ignored", "head", "Sequential", 80, 2),
        ("output", "output", "", 0, None),
    ]


def test_subgraphs_are_frames_in_order(residual: graph.Picture) -> None:
    """Each with its target."""
    assert [(frame.index, frame.target, frame.count) for frame in residual.frames] == [(0, "layers.0", 1), (1, "layers.1", 1), (2, None, 1)]


def test_links_have_name_shape_and_bytes_and_skips_are_marked(residual: graph.Picture) -> None:
    """The value that passes over the second layer skips a subgraph."""
    path = {box.id: f"{box.path}@{box.frame}" for box in residual.boxes}
    links = {(path[link.source], path[link.target]): link for link in residual.links}
    assert [ends for ends, link in links.items() if link.skips] == [("@0", "@2")]
    (value,) = links["layers.0@0", "layers.1@1"].values
    assert (value.name, value.dtype, value.bytes) == ("layers_0", "float32", 48)
    assert value.dims is not None
    assert value.dims[1] == "4"


def test_equal_blocks_are_folded_with_their_count(deep: graph.Graph) -> None:
    """Of 28 layers the first has the embedding beside it; the other 27 are one frame."""
    picture = deep.picture()
    assert [(frame.index, frame.last, frame.count) for frame in picture.frames] == [(0, 0, 1), (1, 27, 27), (28, 28, 1)]
    assert len([box for box in picture.boxes if box.kind == "target"]) == 2
    assert any(link.loop for link in picture.links)
    assert "LlamaDecoderLayer \u00d7 27" in picture.to_svg()


def test_depth_joins_and_divides_boxes(deep: graph.Graph) -> None:
    """Deeper pictures have more boxes of other operations; targets stay one box each."""
    counts = [len([box for box in deep.picture(depth).boxes if box.kind == "module"]) for depth in (0, 1, 2)]
    assert counts == sorted(counts)
    assert counts[0] == 2
    assert counts[2] > counts[0]
    with pytest.raises(ValueError, match="0 or more"):
        deep.picture(-1)


def test_blocks_of_several_subgraphs_are_folded() -> None:
    """Seven linear layers a block repeat as seven frames."""
    with torch.device("meta"):
        model, _, ignore = models.llama(4)
    picture = graph.trace(model.eval(), models.ids(), ["Linear"], ignore).picture()
    assert [(fold.period, fold.count) for fold in picture.folds] == [(7, 3)]


def test_an_encoders_output_goes_to_each_decoder_layer() -> None:
    """Each of them has a link from the encoder."""
    model, sample, ignore = models.whisper()
    picture = graph.trace(model.eval(), sample, None, ignore).picture()
    path = {box.id: box.path for box in picture.boxes}
    links = {(path[link.source], path[link.target]) for link in picture.links}
    assert ("model.encoder", "model.decoder.layers.0") in links
    assert ("model.encoder", "model.decoder.layers.1") in links


def test_the_picture_is_json(residual: graph.Picture) -> None:
    """All boxes, frames and links."""
    read = json.loads(residual.to_json())
    assert (len(read["boxes"]), len(read["frames"]), len(read["links"])) == (7, 3, len(residual.links))


def test_svg_is_whole_and_has_a_box_for_each(deep: graph.Graph) -> None:
    """It is well-formed XML, with a rectangle for each box and each frame inside of the picture."""
    picture = deep.picture()
    root = ElementTree.fromstring(deep.to_svg())
    assert root.tag == f"{SVG}svg"
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    rectangles = [rect for rect in root.iter(f"{SVG}rect") if not rect.get("width", "").endswith("%")]
    assert len(rectangles) == len(picture.boxes) + len(picture.frames)
    for rect in rectangles:
        assert 0 <= float(rect.get("x", "-1")) <= width - float(rect.get("width", "0"))
        assert 0 <= float(rect.get("y", "-1")) <= height - float(rect.get("height", "0"))


HOSTILE = '"><script>alert(1)</script>\\"; } \n\x07'


def test_names_of_models_are_escaped() -> None:
    """Names with markup, quotes and control characters are text in SVG and in DOT."""
    model = breaking.Outer(nn.Identity())
    model.add_module(HOSTILE, nn.Linear(4, 4))

    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner.get_submodule(HOSTILE)(self.inner(x) @ torch.ones(2, 4))

    traced = graph.trace(Calls(), breaking.X, ["Linear"])
    root = ElementTree.fromstring(traced.to_svg())
    assert [element for element in root.iter() if element.tag.endswith("script")] == []
    assert any("<script>" in (text.text or "") for text in root.iter(f"{SVG}title"))
    label = next(line for line in traced.to_dot().splitlines() if "script" in line and "label" in line)
    assert '\\"><script>alert(1)</script>\\\\\\"; } ' in label
    assert "\x07" not in traced.to_dot()
