"""The null of the lineage tests on pairs of small independent models, trained here.

Run: PYTHONPATH=workflow python benchmarks/lineage_null.py 400
"""

from __future__ import annotations

import sys

import torch

from normgauge.anatomy import describe
from normgauge.lineage.null import null_row
from normgauge.lineage.tiny import tiny_config, tiny_tensors
from normgauge.lineage.units import Side
from side_by_side import write_results


def main(models: int) -> None:
    """Disjoint pairs of `models` models: p-values of the exact tests, agreements of the count."""
    torch.set_num_threads(1)
    anatomy = describe(tiny_config())
    rows = []
    for number in range(models // 2):
        sides = [Side(anatomy, tiny_tensors(2 * number + each)) for each in range(2)]
        rows.append({"pair": number, **null_row(*sides, seed=number)})
        print(rows[-1], flush=True)
    write_results("lineage_null", rows)


if __name__ == "__main__":
    main(int(sys.argv[1]))
