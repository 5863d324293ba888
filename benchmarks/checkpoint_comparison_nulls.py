"""How often the comparison finds a significant component where there is none: independent seeds,
and storage rounding alone.

How to run it: benchmarks/README.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch

from normgauge.checkpoint_comparison.alignment import align
from normgauge.checkpoint_comparison.location import located
from normgauge.checkpoint_comparison.nulls import test_rows
from normgauge.checkpoint_comparison.pairing import make_pair
from normgauge.checkpoint_comparison.probes import ProbeSet
from normgauge.checkpoint_comparison.study import all_tests
from normgauge.checkpoints.building import reinitialise
from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.opening import Checkpoint
from side_by_side import write_results

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 97,
}
GATED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
FAMILIES = {
    "gemma3": GATED | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
    "llama": GATED | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 97, "n_positions": 64}
    | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
    "bert": SMALL
    | {"max_position_embeddings": 64, "model_type": "bert", "architectures": ["BertForMaskedLM"]},
}
PROBE = ProbeSet("ten", tuple("0123456789"), tuple(range(20, 30)), True)


def fresh(config: dict, seed: int) -> Checkpoint:
    """A checkpoint as the class initialises itself."""
    made = parse_config(config)
    model = reinitialise(made, seed, "float32")
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    return Checkpoint(made, tensors, dict.fromkeys(tensors, "F32"), ())


def rounded(source: Checkpoint) -> Checkpoint:
    """The same values rounded to bfloat16, stored as float32."""
    tensors = {name: value.bfloat16().float() for name, value in source.tensors.items()}
    return Checkpoint(source.config, tensors, source.stored, source.files)


def significant(first: Checkpoint, second: Checkpoint, seed: int) -> int:
    """Significant components of the pair."""
    pair = make_pair(first, second)
    aligned = align(pair)
    generator = np.random.default_rng(seed)
    tests = all_tests(aligned, located(aligned), (PROBE,), "ten", 99, generator)
    return sum(row["significant"] for row in test_rows(tests))


def rows(runs: int) -> Iterator[dict[str, object]]:
    for family, config in FAMILIES.items():
        found: dict[str, list[int]] = {"independent seeds": [], "rounding to bfloat16": []}
        for run in range(runs):
            first = fresh(config, 2 * run)
            found["independent seeds"].append(significant(first, fresh(config, 2 * run + 1), run))
            found["rounding to bfloat16"].append(significant(first, rounded(first), run))
        for kind, counts in found.items():
            clean = sum(count == 0 for count in counts)
            yield {
                "family": family,
                "pair": kind,
                "runs": runs,
                "without_a_significant_component": clean,
                "share": clean / runs,
            }


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_results(
        "checkpoint_comparison_nulls", list(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
    )
