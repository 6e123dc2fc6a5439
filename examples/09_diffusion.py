"""A diffusion pipeline: one request a call, with its stages and denoising steps. Random weights, so the image shows nothing."""

import diffusers
import torch

import inferspan
from inferspan.report.session import Span, read_session

unet = diffusers.UNet2DModel(
    sample_size=16,
    block_out_channels=(8, 16),
    layers_per_block=1,
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
pipe = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler())
pipe.set_progress_bar_config(disable=True)

with inferspan.instrument(pipe, model_name="noise", modules="none", session_file="diffusion.otlp.jsonl") as handle:
    pipe(batch_size=2, num_inference_steps=4, generator=torch.Generator().manual_seed(7))
    print(handle.summary())
inferspan.flush()


def show(span: Span, depth: int = 0) -> None:
    """Print a span and what is below it."""
    timestep = span.attributes.get("inferspan.denoise.timestep", "")
    print("  " * depth + span.name, timestep)
    for child in span.children:
        show(child, depth + 1)


request = read_session("diffusion.otlp.jsonl").requests[-1].span
show(request)
for key in ("inferspan.output.images", "inferspan.denoise.ran", "gen_ai.request.seed"):
    print(key, "=", request.attributes[key])
