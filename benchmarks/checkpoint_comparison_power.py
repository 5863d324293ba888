"""What the comparison finds of one planted edit, against its size, on real weights; and how many
components it names between independently trained siblings.

How to run it: benchmarks/README.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoint_comparison.addends import reader_of
from normgauge.checkpoint_comparison.alignment import align
from normgauge.checkpoint_comparison.factors import attention_layers, feed_forward_layers
from normgauge.checkpoint_comparison.location import located, table_names
from normgauge.checkpoint_comparison.nulls import test_rows
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.pairing import make_pair
from normgauge.checkpoint_comparison.study import all_tests
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.redundancy.readers import add_to_matrix, matrix_in, stored
from normgauge.yaml_files import read_yaml
from side_by_side import write_results

SIZES = (0.001, 0.01, 0.1)  # of the edit, relative to the norm of what is edited
BACKGROUNDS = ("copy", "rounded to bfloat16")
DRAWS, LISTED = 999, 3  # components elsewhere that are named
Place = Mapping[str, Any]
ENTRIES = read_yaml("config/models.yaml")["models"]


def rows(source: Checkpoint, siblings: Mapping[str, Checkpoint], name: str) -> Iterator[dict]:
    anatomy = describe(source.config)
    for background in BACKGROUNDS:
        for edit in ("head", "unit", "row") if _tables(source, anatomy) else ("head", "unit"):
            for size in SIZES:
                moved, place = edited(source, anatomy, edit, size)
                other = rounded(moved) if background != "copy" else moved
                label = {"model": name, "background": background, "edit": edit, "size": size}
                yield label | outcome(make_pair(source, other), place)
    for sibling, other in siblings.items():
        label = {"model": name, "background": sibling, "edit": "none", "size": 0.0}
        yield label | outcome(make_pair(source, other), None)


def edited(
    source: Checkpoint, anatomy: Anatomy, edit: str, size: float
) -> tuple[Checkpoint, Place]:
    """The checkpoint with a random change of one head's output map, one unit's output, or one row
    of a table in the middle of the model, and its place.
    """
    tensors = stored(anatomy, source.tensors)
    generator = torch.Generator().manual_seed(0)
    if edit == "row":
        name = _tables(source, anatomy)[0]
        table = tensors[name].clone()
        row = int(table.norm(dim=1).argsort()[len(table) // 2])
        table[row] += size * _like(table[row], generator)
        place = {"statistic": "table_row_energy", "label": name, "row": row}
        return _with(source, tensors | {name: table}), place
    layers = attention_layers(anatomy) if edit == "head" else feed_forward_layers(anatomy)
    layer = layers[len(layers) // 2]
    item = layer.maps["attention_output" if edit == "head" else "down"]
    matrix = matrix_in(anatomy, tensors, item)
    heads = anatomy.space(layer.maps["query"].writes).heads if edit == "head" else matrix.shape[1]
    part = slice(0, matrix.shape[1] // heads)
    change = torch.zeros_like(matrix)
    change[:, part] = size * _like(matrix[:, part], generator)
    add_to_matrix(anatomy, tensors, item, change)
    statistic = "ov_energy" if edit == "head" else "mlp_unit_terms"
    place = {"statistic": statistic, "block": layer.block, edit: 0}
    return _with(source, tensors), place


def _tables(source: Checkpoint, anatomy: Anatomy) -> list[str]:
    """The tables whose rows are tested, those that are looked up alone before those that a readout
    reads as well.
    """
    names = table_names(make_pair(source, source))
    return sorted(names, key=lambda name: reader_of(anatomy, name) is not None)


def _like(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random values of the same norm."""
    drawn = torch.randn(values.shape, generator=generator).double()
    return drawn * values.norm() / drawn.norm()


def _with(source: Checkpoint, tensors: Mapping[str, torch.Tensor]) -> Checkpoint:
    return replace(source, tensors={name: value.float() for name, value in tensors.items()})


def rounded(source: Checkpoint) -> Checkpoint:
    """The values rounded to bfloat16, stored as float32."""
    return _with(source, {name: value.bfloat16() for name, value in source.tensors.items()})


def outcome(pair: Pair, place: Place | None) -> dict[str, Any]:
    """The rank and q of the edited component, and the largest ones elsewhere."""
    aligned = align(pair)
    generator = np.random.default_rng(0)
    tests = test_rows(all_tests(aligned, located(aligned), (), None, DRAWS, generator))
    ranked = sorted(tests, key=lambda row: (row["p"], -row["z"]))
    found = next((number for number, row in enumerate(ranked) if place and _is(row, place)), None)
    others = [row for number, row in enumerate(ranked) if number != found]
    return {
        "tests": len(ranked),
        "rank": "" if found is None else found + 1,
        "q": "" if found is None else ranked[found]["q"],
        "significant": "" if found is None else ranked[found]["significant"],
        "elsewhere": sum(row["significant"] for row in others),
        "largest_elsewhere": "; ".join(
            f"{_words(row)} q {row['q']:.2g}" for row in others[:LISTED]
        ),
    }


def _is(row: Mapping[str, Any], place: Place) -> bool:
    return all(_at(row, key) == value for key, value in place.items())


def _at(row: Mapping[str, Any], key: str) -> Any:
    """A row of a table of ids is told by its `token`."""
    return row["token"] if key == "row" and row["row"] is None else row[key]


def _words(row: Mapping[str, Any]) -> str:
    keys = ("block", "head", "unit", "row", "token")
    words = [f"{key} {row[key]}" for key in keys if row[key] is not None]
    return " ".join([row["statistic"], *words])


def opened(folder: Path) -> Checkpoint:
    entry = ENTRIES[folder.parts[-3]]
    return open_checkpoint(folder, entry.get("config"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = []
    for argument in sys.argv[1:]:
        first, *rest = map(Path, argument.split(","))
        siblings = {each.parts[-3]: opened(each) for each in rest}
        found += rows(opened(first), siblings, first.parts[-3])
    write_results("checkpoint_comparison_power", found)
