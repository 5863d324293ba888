"""What one calibration row turns into: noise from its seed, a crop from its picture, and the bytes
that its sha256 covers.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from normgauge.errors import InputError

SAMPLING_RATE = 16_000  # samples per second
SECONDS = 30  # the length that Whisper's encoder takes
FIXED_SIDE = (
    "vit",
    "vit_mae",
    "siglip_vision_model",
    "clip_vision_model",
)  # position tables of one size
LEARNED_TOKENS = {"siglip_vision_model": 0}  # beside registers; others have a class token
PROCESSORS = {
    "vit": "ViTImageProcessorPil",
    "vit_mae": "ViTImageProcessorPil",
    "dinov2": "BitImageProcessorPil",
    "dinov3_vit": "ViTImageProcessorPil",  # its own needs torchvision; it squares as well
    "siglip_vision_model": "SiglipImageProcessorPil",
    "clip_vision_model": "CLIPImageProcessorPil",
}


def noise_waveform(seed: int) -> np.ndarray:
    """Thirty seconds of Gaussian white noise of unit variance: float32 (480000,)."""
    return np.random.default_rng(seed).standard_normal(SECONDS * SAMPLING_RATE, dtype=np.float32)


def noise_pixels(seed: int, side: int, channels: int) -> np.ndarray:
    """Gaussian pixel values, as if already normalised: float32 (channels, side, side)."""
    return np.random.default_rng(seed).standard_normal((channels, side, side), dtype=np.float32)


def picture(payload: bytes, seed: int | None) -> Image.Image:
    """The whole picture in RGB (seed None), or a square crop: side uniform in [1/2, 1] of the short
    edge, place uniform.
    """
    image = Image.open(io.BytesIO(payload)).convert("RGB")
    if seed is None:
        return image
    generator = np.random.default_rng(seed)
    short = min(image.size)
    side = int(generator.integers(short // 2, short, endpoint=True))
    left, top = (int(generator.integers(0, edge - side, endpoint=True)) for edge in image.size)
    return image.crop((left, top, left + side, top + side))


def content_sha256(row: Mapping[str, Any], channels: int = 3) -> str:
    """Hex sha256 of what enters the model for a row of the calibration table, before feature
    extraction.

    ids and token grids: int32 little-endian; audio noise: the float32 waveform, then the decoder
    ids; pictures: the RGB bytes of the crop; image noise: the float32 pixels.
    """
    digest = hashlib.sha256()
    if row["kind"] == "audio-noise":
        digest.update(noise_waveform(row["seed"]).astype("<f4").tobytes())
    elif row["kind"] == "image-noise":
        digest.update(noise_pixels(row["seed"], row["columns"], channels).astype("<f4").tobytes())
    elif row["kind"] == "image":
        digest.update(picture(row["payload"], row["seed"]).tobytes())
    if row["ids"] is not None:
        digest.update(np.asarray(row["ids"], dtype="<i4").tobytes())
    return digest.hexdigest()


def pixel_values(processor: Any, image: Image.Image, config: Any) -> np.ndarray:
    """What the model sees of a picture: float32 (channels, height, width).

    Raises InputError when the processor's settings cannot be applied, or make another size than
    the model's position table has (DINOv2 interpolates, DINOv3 has none).
    """
    try:
        pixels = np.asarray(
            processor(image, return_tensors="np")["pixel_values"][0], dtype=np.float32
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        ZeroDivisionError,
    ) as error:
        raise InputError(
            f"preprocessor_config.json: cannot be applied to a picture ({error}); correct or "
            "remove it"
        ) from error
    side = image_side(config)
    if config.model_type in FIXED_SIDE and pixels.shape[-2:] != (side, side):
        made = " x ".join(map(str, pixels.shape[-2:]))
        raise InputError(
            f"preprocessor_config.json: makes pictures of {made}, the model takes {side} x {side}; "
            "correct one of them"
        )
    return pixels


def image_side(config: Any, key: str = "image_size") -> int:
    """The side in pixels of a model's pictures, or of its patches; InputError when they are not
    square, as those made here are.
    """
    sides = set(value) if isinstance(value := getattr(config, key), (list, tuple)) else {value}
    if len(sides) != 1 or not isinstance(side := sides.pop(), int) or side < 1:
        raise InputError(
            f"config.json: {key} is {value}; calibration makes square pictures only: expected one "
            "positive number"
        )
    return side


def positions_of(config: Any, height: int, width: int) -> int:
    """Positions that a picture of this size takes in the first block: patches, but for those that
    ViT-MAE leaves out, and learned tokens.
    """
    patch = image_side(config, "patch_size")
    patches = int((height // patch) * (width // patch) * (1 - getattr(config, "mask_ratio", 0)))
    learned = LEARNED_TOKENS.get(config.model_type, 1)
    return patches + learned + int(getattr(config, "num_register_tokens", 0))


def image_processor(config: Any, folder: str | os.PathLike[str]) -> Any:
    """transformers' PIL image processor of the model: the folder's preprocessor_config.json, else
    its defaults at config.image_size.

    Raises InputError when that file cannot be used.
    """
    import transformers

    kind = getattr(transformers, PROCESSORS[config.model_type])
    path = Path(folder) / "preprocessor_config.json"
    if path.is_file():
        try:
            return kind.from_pretrained(folder, trust_remote_code=False)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{path.name}: cannot be used as the settings of an image processor ({error}); "
                "restore or remove it"
            ) from error
    side = image_side(config)
    square = {"height": side, "width": side}
    if kind is transformers.BitImageProcessorPil:
        return kind(size={"shortest_edge": side}, crop_size=square)
    return kind(size=square)
