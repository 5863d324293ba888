"""The figures of a comparison on made-up rows: nothing overlaps, the same rows give the same bytes,
the summary tells what was found.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import numpy
import pytest

from matplotlib_settings import USERS
from normgauge.checkpoint_comparison.decision import decide, write_decision
from normgauge.errors import InputError
from normgauge.render import style
from normgauge.render.checkpoint_comparison.drawings import DRAWINGS
from normgauge.render.checkpoint_comparison.head_grid import head_grid
from normgauge.render.checkpoint_comparison.heat_maps import scale_of
from normgauge.render.checkpoint_comparison.tables import component
from normgauge.render.drawing import draw
from normgauge.render.tabulating import write_table
from normgauge.schemas.checkpoint_comparison import tables
from result_samples import filled
from unit.test_render import assert_legible, text_of

METADATA = {
    "model_a": "first-model",
    "revision_a": "1.0",
    "model_b": "second-model",
    "revision_b": "seed42",
}
OFFSETS = (0, 1, 4, 16, 64, 256, 512)


def made_up(kind: str, blocks: int, heads: int) -> list[dict]:
    generator = numpy.random.default_rng(0)
    schema = tables.schemas[kind]
    rows = []
    if kind == "checkpoint_comparison_inventory":
        for block in range(1, blocks + 1):
            for part in ("attention", "mlp", "norm"):
                values = {
                    "aligned_relative": float(10 ** generator.uniform(-4, 0)),
                    "squared_share": float(10 ** generator.uniform(-6, 0)),
                }
                rows.append(
                    filled(
                        schema, status="total", block=block, part=part, invariant_under=[], **values
                    )
                )
        whole = {
            "values": 100,
            "relative": 0.0891,
            "relative_to_a": 0.088,
            "floor": 1e-8,
            "aligned_relative": 0.09,
        }
        for name in ("all tensors", "matrices of all blocks"):
            rows.append(filled(schema, tensor=name, status="total", invariant_under=[], **whole))
        rows.append(filled(schema, tensor="classifier.weight", status="B only", invariant_under=[]))
    elif kind == "checkpoint_comparison_kernels":
        place = {"mode": "folded", "part": "attention", "invariant_under": []}
        for block in range(1, blocks + 1):
            for head in range(heads):
                for statistic in ("ov_relative", "qk_relative"):
                    rows.append(
                        filled(
                            schema,
                            statistic=statistic,
                            block=block,
                            head=head,
                            change=float(generator.uniform()),
                            **place,
                        )
                    )
                for offset in OFFSETS:
                    values = {
                        "label": str(offset),
                        "probe": "digits",
                        "change": float(generator.standard_normal()),
                    }
                    rows.append(
                        filled(
                            schema,
                            statistic="recency_curve",
                            block=block,
                            head=head,
                            **place,
                            **values,
                        )
                    )
    else:
        for statistic, null in (
            ("ov_energy", "energy-matched random difference"),
            ("qk_contrast", "row signs"),
        ):
            for head in range(20):
                first = statistic == "ov_energy"
                values = {
                    "p": (head + 1) / 1000,
                    "smallest_p": 0.001,
                    "significant": first and head < 3,
                    "confirmatory": first,
                }
                family = "confirmatory" if first else "exploratory"
                rows.append(
                    filled(
                        schema,
                        statistic=statistic,
                        null=null,
                        block=1,
                        head=head,
                        family=family,
                        **values,
                    )
                )
    return rows


@pytest.mark.parametrize(("blocks", "heads"), [(1, 1), (12, 4), (40, 16)])
@pytest.mark.parametrize("name", DRAWINGS)
def test_nothing_overlaps_or_leaves_the_page(name, blocks, heads):
    drawing = DRAWINGS[name]
    with style.look():
        assert_legible(
            drawing(made_up(drawing.table, blocks, heads), "first-model 1.0 → second-model seed42")
        )


def test_curves_over_the_offset_stand_below_the_heads_where_there_are_any():
    rows = made_up("checkpoint_comparison_kernels", 3, 2)
    without = [row for row in rows if row["statistic"] != "recency_curve"]
    with style.look():
        assert "offset, positions" in text_of(head_grid(rows, "a → b"))
        assert "offset" not in text_of(head_grid(without, "a → b")).replace("at offset 0", "")


def test_values_that_are_nearly_equal_look_so():
    scale = scale_of(numpy.array([[1.9, 2.1]]))
    assert scale(2.1) - scale(1.9) == pytest.approx(numpy.log10(2.1 / 1.9))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"token": 12, "row": 12, "token_text": "Br", "label": "words"}, "token 'Br'"),
        ({"row": 7, "label": "positions"}, "row 7 of positions"),
        ({"block": 2, "head": 1}, "block 2 head 1"),
    ],
)
def test_a_component_is_named_in_words(place, words):
    row = filled(tables.schemas["checkpoint_comparison_nulls"], statistic="ov_energy", **place)
    assert component(row) == f"{words}: ov_energy"


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_same_table_gives_the_same_bytes(name, tmp_path):
    kind = DRAWINGS[name].table
    tables.write(tmp_path / "table.parquet", kind, made_up(kind, 3, 2), METADATA)
    contents = []
    for settings in ({}, USERS):
        outputs = [tmp_path / "figure.pdf", tmp_path / "figure.svg"]
        with matplotlib.rc_context(settings):
            draw(name, tmp_path / "table.parquet", outputs)
        contents.append([path.read_bytes() for path in outputs])
    assert contents[0] == contents[1]


def test_an_empty_table_is_refused(tmp_path):
    tables.write(tmp_path / "table.parquet", "checkpoint_comparison_nulls", [], METADATA)
    with pytest.raises(InputError, match="no rows to draw"):
        draw("checkpoint_comparison_nulls", tmp_path / "table.parquet", [tmp_path / "figure.pdf"])


def test_the_summary_tells_what_was_found(tmp_path: Path):
    rows = {kind: made_up(f"checkpoint_comparison_{kind}", 2, 2) for kind in ("inventory", "nulls")}
    alignment = tables.schemas["checkpoint_comparison_alignment"]
    rows["alignment"] = [
        filled(alignment, group="heads", found=found) for found in ("identity", "none", "identity")
    ]
    paths = {}
    for kind, content in rows.items():
        paths[kind] = tmp_path / f"{kind}.parquet"
        tables.write(paths[kind], f"checkpoint_comparison_{kind}", content, METADATA)
    decision = tmp_path / "decision.json"
    write_decision(decision, decide([], [], None, {}))
    inputs = {kind: [path] for kind, path in paths.items()} | {"decision": [decision]}
    outputs = [tmp_path / f"checkpoint_comparison.{suffix}" for suffix in ("parquet", "csv")]
    write_table("checkpoint_comparison", inputs, *outputs)
    (row,) = tables.read(tmp_path / "checkpoint_comparison.parquet", "checkpoint_comparison")
    assert (row["model_a"], row["revision_b"], row["relative_to_a"], row["unmatched"]) == (
        "first-model",
        "seed42",
        0.088,
        1,
    )
    assert (row["heads"], row["units"], row["tests"], row["significant"]) == (
        "identity and none",
        None,
        20,
        3,
    )
    assert row["strongest"] == "block 1 head 0: ov_energy"
    assert row["label"] == json.loads(decision.read_text())["label"] == "abstain"
