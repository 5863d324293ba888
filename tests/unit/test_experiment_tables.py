"""Tables of the mechanism and the experiments from planted rows, and every drawing of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from normgauge.render.dead_directions.experiments import DRAWINGS
from normgauge.render.dead_directions.mechanism_rows import (
    argmin_gamma,
    permutation_p,
    spearman,
    table3,
    table4,
)
from normgauge.schemas.dead_directions import tables

GROUPS = [100, 100, 100, 100]


def mechanism_row(block, sublayer, ratio, **changes):
    """A row of the schema with plausible values everywhere."""
    row = {field.name: planted(field, block) for field in tables.schemas["mechanism"]}
    left = [ratio * factor for factor in (0.98, 1.0, 1.01, 1.02)]
    return row | {
        "model": "m",
        "revision": "r",
        "kind": "trained",
        "placement": "pre-norm",
        "stack": "decoder",
        "blocks": 3,
        "block": block,
        "sublayer": sublayer,
        "ratio": ratio,
        "lowers": ratio < 1,
        "post_norm_concentration": None,
        "group_samples": GROUPS,
        "replicates": [("mean_cosine", [0.1 * block] * 4), ("ratio", left)],
        **changes,
    }


def planted(field, number=1):
    if field.type == pa.string():
        return "x"
    if field.type == pa.bool_():
        return True
    if field.type == pa.int64():
        return number
    return 0.1 * number if field.type == pa.float64() else []


def test_table3_pools_the_blocks_of_each_sublayer():
    rows = [
        mechanism_row(block, sublayer, ratio, mean_cosine=0.1 * block)
        for block, ratio in ((1, 2.0), (2, 0.5), (3, 3.0))
        for sublayer in ("attention", "mlp")
    ]
    rows += [mechanism_row(1, "mlp", 0.1, kind="random initialisation")]
    found = table3(rows)
    assert [row["sublayer"] for row in found] == ["attention", "mlp"]
    row = found[0]
    assert (row["min_ratio"], row["min_ratio_block"]) == (0.5, 2)
    assert row["share_at_least_one"] == pytest.approx(2 / 3)
    assert row["min_ratio_se"] > 0
    assert row["max_mean_cosine_block"] == 3
    assert row["rho_cosine"] == pytest.approx(0.5)
    assert row["rho_cosine_p"] == 1.0  # three blocks cannot say more
    assert row["blocks_lowered"] == 1


def test_table4_counts_each_block_once_and_falls_by_sublayer():
    rows = [
        mechanism_row(block, sublayer, ratio, lowers=sublayer == "mlp" and block > 1)
        for block, ratio in ((1, 2.0), (2, 0.5), (3, 3.0))
        for sublayer in ("attention", "mlp")
    ]
    [row] = table4(rows)
    assert (row["blocks_below_one"], row["attention_locus"], row["mlp_locus"]) == (1, 0, 2)
    assert (row["verdict"], row["output_ratio"]) == ("fail", 3.0)


def test_rank_correlation_and_its_p():
    from scipy import stats

    generator = np.random.default_rng(0)
    first, second = generator.standard_normal((2, 30))
    second = second + first
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert permutation_p(first, second) < 0.01
    assert permutation_p(range(4), range(4)) == pytest.approx(2 / 24)
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    ties = [1, 1, 2, 3], [4, 3, 2, 2]
    assert spearman(*ties) == pytest.approx(stats.spearmanr(*ties).statistic)
    drawn = [permutation_p(*generator.standard_normal((2, 6))) for _ in range(100)]
    assert 0.2 < np.mean(drawn) < 0.8


def test_argmin_gamma_of_random_directions_is_chance():
    generator = np.random.default_rng(0)
    d, cells = 64, 400
    vectors = generator.standard_normal((cells, d))
    cosines = np.abs(vectors[:, 0]) / np.linalg.norm(vectors, axis=1)
    rows = [
        {
            "site": f"s{number}",
            "cos_min_gain": float(cosine) if number else None,
            "cos_gamma_inv": 0.1,
            "collapsed_gains": 0,
            "gamma": "norm",
            "d": d,
            "n": 400,
            "forward_dtype": "float32",
            "group_samples": GROUPS,
            "replicates": [("cos_min_gain", [float(cosine)] * 4)],
        }
        for number, cosine in enumerate(cosines)
    ]
    stack = {"model": "m", "revision": "r", "stack": "decoder", "norm_kind": "RMSNorm"}
    [row] = argmin_gamma([(stack, rows)])
    assert (row["cells"], row["undetermined"]) == (cells - 1, 1)
    assert row["mean_cosine"] == pytest.approx(row["chance_cosine"], rel=0.1)
    assert row["mean_cosine"] < row["chance_cosine_high"] * 1.05
    aligned = [each | {"cos_min_gain": 0.9} for each in rows]
    assert argmin_gamma([(stack, aligned)])[0]["mean_cosine"] > 4 * row["chance_cosine_high"]


@pytest.mark.parametrize("name", sorted(DRAWINGS))
def test_every_table_is_drawn(name, tmp_path):
    schema = tables.schemas[DRAWINGS[name].table]
    rows = [{field.name: planted(field, number) for field in schema} for number in (1, 2)]
    for number, row in enumerate(rows):
        row |= {"estimator": "centred"} if "estimator" in row else {}
        row |= {"design": ("disjoint", "one pool")[number]} if "design" in row else {}
        row |= {"block": number + 1, "blocks": 2} if name in ("figure2", "figure5") else {}
        row |= {"allocation": ("none", "early")[number]} if "allocation" in row else {}
        if name == "table6":
            row |= {"optimiser": ("SGD", "Adam")[number], "loss": "cross-entropy"}
    tables.write(tmp_path / "rows.parquet", DRAWINGS[name].table, rows, {})
    figure = DRAWINGS[name](tables.read(tmp_path / "rows.parquet", DRAWINGS[name].table))
    figure.savefig(tmp_path / f"{name}.pdf")
    assert (tmp_path / f"{name}.pdf").stat().st_size > 1000
