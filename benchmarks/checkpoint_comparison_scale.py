"""The comparison at the size of a Gemma-3 decoder of 18 blocks with a vocabulary of 262144:
tensors, parameters, peak memory, seconds.

Weights are random; B is A with noise of a hundredth. How to run it: benchmarks/README.md
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import logging

from normgauge.checkpoint_comparison.pairing import open_pair
from normgauge.checkpoint_comparison.study import compare_folders
from normgauge.checkpoints.architectures import empty_model
from normgauge.checkpoints.configuration import parse_config
from side_by_side import write_results

SHAPE = Path("config/shapes/gemma3-270m.json")
DRAWS = 199


def write_checkpoint(folder: Path, config: dict, noise: float) -> None:
    """Random bfloat16 weights, the tied readout stored as well."""
    folder.mkdir()
    generator, other = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    tensors = {}
    for name, empty in empty_model(parse_config(config), torch.float32).state_dict().items():
        if name != "lm_head.weight":
            value = 0.02 * torch.randn(empty.shape, generator=generator)
            if noise:
                value += noise * 0.02 * torch.randn(empty.shape, generator=other)
            tensors[name] = value.bfloat16()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    vocabulary = {token: number for number, token in enumerate([*"0123456789abcdefghij", "?"])}
    Tokenizer(models.WordLevel(vocabulary, unk_token="?")).save(str(folder / "tokenizer.json"))


class PeakMemory:
    """The largest private memory of this process while it is entered, in MB: file maps are left
    out.
    """

    def __enter__(self) -> PeakMemory:
        self.peak, self._done = 0.0, threading.Event()
        self._watch = threading.Thread(target=self._run)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()

    def _run(self) -> None:
        while not self._done.wait(0.2):
            status = Path("/proc/self/status").read_text(encoding="utf-8")
            self.peak = max(self.peak, int(status.partition("RssAnon:")[2].split()[0]) / 1000)


def main(config: dict) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folders = Path(scratch) / "a", Path(scratch) / "b"
        for folder, noise in zip(folders, (0.0, 0.01), strict=True):
            write_checkpoint(folder, config, noise)
        pair = open_pair(folders)
        stored = pair.a.tensors
        outputs = {
            kind: Path(scratch) / kind
            for kind in ("inventory", "alignment", "kernels", "nulls", "decision")
        }
        start = time.perf_counter()
        with PeakMemory() as memory:
            compare_folders(
                folders, outputs, (None, None), "config/probes.yaml", "digits", DRAWS, 0, {}
            )
        seconds = time.perf_counter() - start
    row = {
        "tensors": len(stored),
        "parameters": sum(value.numel() for value in stored.values()),
        "draws": DRAWS,
    }
    write_results(
        "checkpoint_comparison_scale",
        [row | {"peak_private_mb": round(memory.peak), "seconds": round(seconds)}],
    )


if __name__ == "__main__":
    logging.set_verbosity_error()
    torch.set_num_threads(2)
    main(json.loads(SHAPE.read_text(encoding="utf-8")))
