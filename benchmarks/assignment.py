"""The exact assignment against a greedy one, on noise and on correlations of a real model, d = 512
to 8192.

How to run it: benchmarks/README.md. The real correlations are those of smollm2-135m's feed-forward
units in its first six blocks with the units of a copy whose weights have noise on them; it is
acquired before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.gauge.matching import assign, assign_greedily
from side_by_side import write_results

SIZES = (512, 1024, 2048, 4096, 8192)
BLOCKS, SEQUENCES, LENGTH = 6, 8, 256
SAMPLES = SEQUENCES * LENGTH
CHECKPOINT = Path("results/smollm2-135m/0.1.2/checkpoint")
SHARES = (0.3, 1.0)  # of a matrix's standard deviation: the noise on the copy's weights


def units(checkpoint: Checkpoint) -> torch.Tensor:
    """float32 (SAMPLES, units): the down projections' inputs on random tokens, centred, of length
    one.
    """
    seen: list[torch.Tensor] = []
    model = build_model(checkpoint, "float32")
    for layer in model.model.layers[:BLOCKS]:
        layer.mlp.down_proj.register_forward_pre_hook(
            lambda _, arguments: seen.append(arguments[0].reshape(SAMPLES, -1))
        )
    ids = torch.randint(
        checkpoint.config.vocab_size,
        (SEQUENCES, LENGTH),
        generator=torch.Generator().manual_seed(0),
    )
    with torch.inference_mode():
        model(input_ids=ids, use_cache=False)
    found = torch.cat(seen, 1)
    found = found - found.mean(0)
    return found / found.norm(dim=0).clamp_min(1e-20)


def with_noise(checkpoint: Checkpoint, share: float) -> Checkpoint:
    generator = torch.Generator().manual_seed(1)
    noisy = {
        name: value.float()
        + share * value.float().std() * torch.randn(value.shape, generator=generator)
        if value.ndim == 2
        else value
        for name, value in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=noisy)


def scores() -> Iterator[tuple[str, np.ndarray]]:
    """(what it is, float32 (d, d)) of every score that is assigned."""
    checkpoint = open_checkpoint(CHECKPOINT)
    source = units(checkpoint)
    for share in SHARES:
        correlation = (source.T @ units(with_noise(checkpoint, share))).abs().numpy()
        for size in SIZES:
            order = np.random.default_rng(size).permutation(size)
            yield (
                f"smollm2-135m, {share} of noise on its copy",
                np.ascontiguousarray(correlation[:size, :size][:, order]),
            )
    generator = np.random.default_rng(0)
    for size in SIZES:
        first, second = (
            generator.standard_normal((SAMPLES, size), dtype=np.float32) for _ in range(2)
        )
        yield "unrelated normal samples", np.abs(first.T @ second) / SAMPLES
        yield "uniform noise", generator.random((size, size), dtype=np.float32)
        plant = generator.random((size, size), dtype=np.float32) ** 4
        plant[np.arange(size), generator.permutation(size)] += 0.5 * generator.random(
            size, dtype=np.float32
        )
        yield "a plant in noise", plant


def main() -> None:
    rows = []
    for what, score in scores():
        size = len(score)
        row: dict[str, object] = {"what": what, "d": size}
        sums = {}
        for name, solve in (("assign", assign), ("greedy", assign_greedily)):
            started = time.process_time()
            target, method, _ = solve(score)
            row[f"{name}_cpu_seconds"] = f"{time.process_time() - started:.3g}"
            sums[name] = score[np.arange(size), target].sum(dtype=np.float64)
            if name == "assign":
                row["method"] = method
        rows.append({**row, "greedy_loses": f"{1 - sums['greedy'] / sums['assign']:.2g}"})
    write_results("assignment", rows)


if __name__ == "__main__":
    main()
