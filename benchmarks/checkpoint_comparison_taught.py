"""A pair with a known answer: two fine-tunes of one Gemma-3 nano, trained here, of which one was
taught to copy; and pairs of which none was.

How to run it: benchmarks/README.md
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from normgauge.calibration.corpora import build_corpus
from normgauge.checkpoint_comparison.pairing import open_pair
from normgauge.checkpoint_comparison.probes import find_probes, read_probes
from normgauge.checkpoint_comparison.study import Comparison, compare
from normgauge.training.optimise import Training, repeated
from normgauge.training.plan import Plan, recipe_plan
from normgauge.training.recipes import recipe_named
from normgauge.training.texts import corpus_texts, split
from normgauge.training.train import execution, new_model, recipe_text, save_model
from side_by_side import write_results

RECIPE, CORPUS, PROBE = "gemma3-nano", "python-docs", "letters"
STEPS, PERIOD, DRAWS = 150, 16, 999
HEADS = ("ov_energy", "qk_energy", "ov_copy")


def rows(seeds: Sequence[int], folder: Path) -> Iterator[dict[str, Any]]:
    """Per seed a pair with one side taught, and one with none."""
    build_corpus(CORPUS, None, folder / "corpus.parquet")
    texts, _ = corpus_texts(folder / "corpus.parquet")
    tokenizer, sequences = recipe_text(RECIPE, texts, CORPUS)
    training, held_out = split(sequences)
    base = trained(None, recipe_plan(recipe_named(RECIPE), 42), training)
    tuning = replace(recipe_plan(recipe_named(RECIPE), 0), steps=STEPS, learning_rate=1e-3)
    for seed in seeds:
        plain, other, taught = (
            trained(base, plan, training)
            for plan in (
                replace(tuning, seed=seed),
                replace(tuning, seed=seed + 1000),
                replace(tuning, seed=seed + 1000, period=PERIOD),
            )
        )
        for kind, model in (("taught to copy", taught), ("not taught", other)):
            found = compared(plain, model, tokenizer, folder / f"{seed}-{kind}")
            losses = [copy_loss(each, held_out) for each in (plain, model)]
            yield {
                "pair": kind,
                "seed": seed,
                **outcome(found),
                "loss_a": losses[0],
                "loss_b": losses[1],
            }


def trained(base: torch.nn.Module | None, plan: Plan, training: torch.Tensor) -> torch.nn.Module:
    """The base, or a fresh model of the recipe, after the plan."""
    with execution(plan.seed, 1):
        model = new_model(recipe_named(RECIPE)) if base is None else copy.deepcopy(base)
        run = Training(model, plan, training.flatten())
        for _ in range(plan.steps):
            run.advance()
    return run.model


def copy_loss(model: torch.nn.Module, held_out: torch.Tensor) -> float:
    """Nats per token of held-out text that repeats itself, from its third period on."""
    ids = repeated(held_out[:32], PERIOD)
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[:, 2 * PERIOD - 1 : -1]
    return float(
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 2 * PERIOD :].flatten())
    )


def compared(
    first: torch.nn.Module, second: torch.nn.Module, tokenizer: Tokenizer, folder: Path
) -> Comparison:
    """The comparison of both models, written as folders."""
    folders = folder / "a", folder / "b"
    for each, model in zip(folders, (first, second), strict=True):
        each.mkdir(parents=True)
        save_model(model, tokenizer, each)
    pair = open_pair(folders)
    probes, dropped = find_probes(read_probes("config/probes.yaml"), folders[0], pair, PROBE)
    return compare(pair, probes, DRAWS, 0, PROBE, dropped)


def outcome(found: Comparison) -> dict[str, Any]:
    """What the comparison says of copying, and the head that it names first."""
    tests = [row for row in found.nulls if row["confirmatory"]]
    ranked = sorted(tests, key=lambda row: (row["p"], -row["z"]))
    rank = next(
        number for number, row in enumerate(ranked, 1) if row["statistic"] == "ov_copy_all_heads"
    )
    declared = ranked[rank - 1]
    heads = [row for row in found.nulls if row["statistic"] in HEADS and row["confirmatory"]]
    first = min(heads, key=lambda row: (row["p"], -row["z"]))
    return {
        "label": found.decision["label"],
        "change": declared["change"],
        "q": declared["q"],
        "familywise_p": declared["familywise_p"],
        "rank": rank,
        "tests": len(tests),
        "first_head": f"block {first['block']} head {first['head']}",
        "first_head_statistic": first["statistic"],
        "significant": sum(row["significant"] for row in tests),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as scratch:
        write_results("checkpoint_comparison_taught", list(rows(range(count), Path(scratch))))
