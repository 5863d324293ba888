"""The null of the lineage tests on disjoint pairs of small independent models, trained here on one
source of data; with `all` on all pairs of these models as well.

Pairs that share a model are not independent, so the p-value of Kolmogorov and Smirnov is exact for
the disjoint pairs alone.

Run: PYTHONPATH=workflow python benchmarks/lineage_null.py 400, or 200 all
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from scipy.stats import kstest

from normgauge.anatomy import describe
from normgauge.anatomy.structure import NormKind
from normgauge.lineage.null import null_row
from normgauge.lineage.tiny import tiny_config, tiny_tensors
from normgauge.lineage.units import anchors_of, layers_of, pair_of_parts
from side_by_side import write_results

LEVELS = (0.05, 0.01, 0.001)


def summary(pairs: str, models: int, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per statistic: how uniform its p-values are, and how many lie at or below a level."""
    found = []
    agreements = np.array([row["agreements"] for row in rows])
    for name in ("units", "stream", "count"):
        p = np.array([row[f"p_{name}"] for row in rows])
        test = kstest(p, "uniform") if name != "count" else None
        found.append(
            {
                "pairs": pairs,
                "models": models,
                "statistic": name,
                "tested": len(p),
                "ks_distance": round(float(test.statistic), 4) if test else "",
                "ks_p": round(float(test.pvalue), 3) if test else "",
                **{f"at_{level}": int((p <= level).sum()) for level in LEVELS},
                "mean_agreements": "" if test else round(float(agreements.mean()), 3),
                "variance_agreements": "" if test else round(float(agreements.var()), 3),
                "largest_agreements": "" if test else int(agreements.max()),
            }
        )
    return found


def main(models: int, every_pair: bool) -> None:
    """Both tables: a summary of the disjoint pairs, and of all with `every_pair`; the disjoint ones
    pair by pair.
    """
    torch.set_num_threads(1)
    anatomy = describe(tiny_config())
    read = []
    for seed in range(models):
        tensors = tiny_tensors(seed)
        read.append((layers_of(anatomy, tensors), anchors_of(anatomy, tensors, "")))
    signs, rows = anatomy.norm_kind == NormKind.RMS_NORM, []
    for number, (first, second) in enumerate(combinations(range(models), 2)):
        disjoint = first % 2 == 0 and second == first + 1
        if disjoint or every_pair:
            row = null_row(pair_of_parts(read[first], read[second]), signs, seed=number)
            rows.append({"first": first, "second": second, "disjoint": disjoint, **row})
    apart = [row for row in rows if row["disjoint"]]
    found = summary("all", models, rows) if every_pair else []
    write_results("lineage_null", [*found, *summary("disjoint", models, apart)])
    write_results("lineage_null_pairs", apart)


if __name__ == "__main__":
    main(int(sys.argv[1]), "all" in sys.argv[2:])
