"""The order of blocks beside the whole-model pass: CPU seconds, and peak memory against depth.

Models are random, of one width: `python benchmarks/capture_by_block.py`. How to run it:
benchmarks/README.md. Each measurement is a process of its own, forked from one that has imported
everything and computed nothing; the two orders in turn, on one thread.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch
from normgauge.capture import capture
from normgauge.capture.by_block import Run, capture_by_block
from normgauge.capture.outputs import FiledOutputs
from normgauge.capture.study import select_sites
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.skeleton import skeleton
from side_by_side import peak_memory_mb, write_results

DEPTHS, ROUNDS = (8, 16, 32), 1
WIDTH, VOCABULARY, LENGTH, BATCHES = 384, 8000, 160, 2
GROUPS = ("residual", "terminal", "taps", "schur")


def write_checkpoint(folder: Path, blocks: int) -> None:
    """A Llama of this depth with random weights in bfloat16."""
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=blocks,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        architectures=["LlamaForCausalLM"],
    )
    generator = torch.Generator().manual_seed(blocks)
    tensors = {
        tensor.name: (
            torch.ones(tensor.shape)
            if len(tensor.shape) == 1
            else torch.randn(tensor.shape, generator=generator) / tensor.shape[-1] ** 0.5
        ).bfloat16()
        for tensor in describe(config).tensors
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config.save_pretrained(folder)


def measure(folder: Path, order: str) -> tuple[float, float, float]:
    """One capture in this process: its CPU seconds, and its peak above what was there before."""
    generator = torch.Generator().manual_seed(0)
    shape = (4, LENGTH)
    batches = [
        Batch(
            {"input_ids": torch.randint(0, VOCABULARY, shape, generator=generator)},
            {"decoder": None},
        )
        for _ in range(BATCHES)
    ]
    before, start = peak_memory_mb(), time.process_time()
    checkpoint = open_checkpoint(folder)
    anatomy = describe(checkpoint.config)
    sites = select_sites(anatomy, GROUPS)
    if order == "whole":
        capture(build_model(checkpoint, "float32"), sites, batches, "cov64")
    else:
        with tempfile.TemporaryDirectory() as scratch:
            run = Run(lambda: batches, BATCHES, "cov64", float("inf"), order)
            model = skeleton(checkpoint, "float32", torch.device("cpu"))
            for _ in capture_by_block(model, anatomy, sites, run, [], FiledOutputs(Path(scratch))):
                pass
    return time.process_time() - start, peak_memory_mb() - before, before


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a process of its own."""
    with get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)


def rows() -> list[dict[str, object]]:
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for blocks in DEPTHS:
            folder = Path(scratch) / str(blocks)
            apart(write_checkpoint, folder, blocks)
            rounds = [
                {order: apart(measure, folder, order) for order in ("whole", "by block")}
                for _ in range(ROUNDS)
            ]
            ratio = statistics.median(each["by block"][0] / each["whole"][0] for each in rounds)
            for order in ("whole", "by block"):
                seconds, peak, before = (
                    statistics.median(values)
                    for values in zip(*(each[order] for each in rounds), strict=True)
                )
                found.append(
                    {
                        "blocks": blocks,
                        "order": order,
                        "cpu_seconds": f"{seconds:.1f}",
                        "ratio_to_whole": f"{ratio:.2f}" if order == "by block" else "1",
                        "peak_above_imports_mb": f"{peak:.0f}",
                        "imports_mb": f"{before:.0f}",
                    }
                )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_results("capture_by_block", rows())
