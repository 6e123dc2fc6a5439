"""Models and pipelines of diffusers and sentence-transformers, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.cases.telemetry import Telemetry
from tests.zero_code.test_models import bert

Observe = Callable[..., Any]
IGNORED = "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
pytestmark = [pytest.mark.filterwarnings(one) for one in IGNORED]


def _pipeline() -> Any:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4, **blocks
    )
    pipe = diffusers.DDPMPipeline(unet.eval(), diffusers.DDPMScheduler(num_train_timesteps=10))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pictures(pipe: Any) -> Any:
    return pipe(num_inference_steps=3, generator=torch.Generator().manual_seed(0), output_type="np").images


def test_diffusion_pipeline(telemetry: Telemetry, observe: Observe) -> None:
    """A call of a pipeline is one request with its denoising steps, and the pictures stay the same."""
    plain = _pictures(_pipeline())
    observe()
    pipe = _pipeline()
    assert (_pictures(pipe) == plain).all()
    assert (_pictures(pipe) == plain).all()
    assert [span.name.split()[0] for span in telemetry.roots()] == ["generate_content"] * 2
    assert len(telemetry.spans("denoise_step")) == 6
    telemetry.check()


def test_pipeline_that_the_program_instruments(telemetry: Telemetry, observe: Observe) -> None:
    """It has the program's settings, and is recorded once."""
    observe()
    pipe = _pipeline()
    telemetry.instrument(pipe, model_name="mine")
    _pictures(pipe)
    assert [span.name for span in telemetry.roots()] == ["generate_content mine"]
    telemetry.check()


def test_excluded_pipeline(telemetry: Telemetry, observe: Observe) -> None:
    """A pipeline that ``exclude`` names is not recorded, nor are its models."""
    observe(exclude="DDPM*")
    _pictures(_pipeline())
    assert telemetry.roots() == []


def test_half_of_an_autoencoder(telemetry: Telemetry, observe: Observe) -> None:
    """The first ``decode()`` of an autoencoder is a request."""
    diffusers = pytest.importorskip("diffusers")
    observe()
    model = diffusers.AutoencoderKL(norm_num_groups=4, block_out_channels=(8,)).eval()
    with torch.no_grad():
        model.decode(torch.randn(1, 4, 4, 4))
    assert [span.name for span in telemetry.roots()] == ["decode AutoencoderKL"]
    telemetry.check()


def test_sentence_encoder(telemetry: Telemetry, observe: Observe, tmp_path: Path) -> None:
    """The first ``encode()`` is recorded as embeddings with its tokens, once, and the vectors stay the same."""
    kinds = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    from tests.cases.facts.test_operation import _tokenizer

    torch.manual_seed(0)
    bert().save_pretrained(tmp_path)
    tokenizer = _tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    texts = ["hello there", "be kind"]

    def vectors() -> Any:
        model = kinds.SentenceTransformer(modules=[modules.Transformer(str(tmp_path)), modules.Pooling(16)])
        tokens = sum(map(len, model.tokenizer(texts)["input_ids"]))
        return model.encode(texts, show_progress_bar=False), tokens

    plain, _ = vectors()
    observe()
    seen, tokens = vectors()
    assert (seen == plain).all()
    assert telemetry.only()[semconv.OPERATION_NAME] == "embeddings"
    assert telemetry.only()[semconv.INPUT_TOKENS] == tokens
    telemetry.check()
