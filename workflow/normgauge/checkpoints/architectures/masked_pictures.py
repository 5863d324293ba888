"""ViT-MAE leaves out a random part of each picture, drawn anew at every pass; here a picture is
masked alike in every pass.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import torch


def mask_by_content(model: Any) -> None:
    """Make a ViT-MAE model draw the mask of a picture from a generator whose seed is made of its
    pixels, in place: a function of the picture, whatever stands beside it in the batch, and in
    whatever arithmetic, since the pixels are rounded to bfloat16 for that.

    A `noise` that is given is used as it is.
    """
    embeddings = model.embeddings
    embeddings.random_masking = functools.partial(_kept, model.config.mask_ratio)
    embeddings.forward = functools.partial(
        _forward, embeddings.forward, embeddings.patch_embeddings.num_patches
    )


def _forward(
    forward: Callable[..., Any],
    patches: int,
    pixel_values: torch.Tensor,
    noise: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    if noise is None:
        noise = torch.stack([_order(picture, patches) for picture in pixel_values])
    return forward(pixel_values, noise=noise.to(pixel_values.device), **options)


def _order(picture: torch.Tensor, patches: int) -> torch.Tensor:
    rounded = picture.detach().cpu().to(torch.bfloat16).view(torch.int16)
    content = rounded.numpy().tobytes()
    return torch.randperm(patches, generator=torch.Generator().manual_seed(zlib.crc32(content)))


def _kept(
    ratio: float, sequence: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As transformers' own masking, in the dtype of the sequence: the patches of least noise, in
    that order, the mask (1 where a patch is left out), and the order that undoes the shuffling.
    """
    order = torch.argsort(noise, dim=1)
    back = torch.argsort(order, dim=1)
    count = int(sequence.shape[1] * (1 - ratio))
    kept = order[:, :count, None].expand(-1, -1, sequence.shape[2])
    mask = (back >= count).to(sequence.dtype)
    return sequence.gather(1, kept), mask, back
