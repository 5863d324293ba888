"""The figures of a comparison on made-up rows: nothing overlaps, the same rows give the same bytes, the summary tells what was found."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import numpy
import pytest

from normgauge.comparison.decision import decide, write_decision
from normgauge.errors import InputError
from normgauge.render import style
from normgauge.render.comparison import DRAWINGS, draw, offset_curves, write_summary
from normgauge.schemas.comparison import tables
from result_samples import filled
from unit.test_render import assert_legible, text_of

METADATA = {"model_a": "first-model", "revision_a": "1.0", "model_b": "second-model", "revision_b": "seed42"}
OFFSETS = (0, 1, 4, 16, 64, 256, 512)


def made_up(kind: str, blocks: int, heads: int) -> list[dict]:
    generator = numpy.random.default_rng(0)
    schema = tables.schemas[kind]
    rows = []
    if kind == "comparison_inventory":
        for block in range(1, blocks + 1):
            for part in ("attention", "mlp", "norm"):
                values = {"aligned_relative": float(10 ** generator.uniform(-4, 0)), "squared_share": float(10 ** generator.uniform(-6, 0))}
                rows.append(filled(schema, status="total", block=block, part=part, invariant_under=[], **values))
        whole = {"values": 100, "relative": 0.0891, "relative_to_a": 0.088, "floor": 1e-8, "aligned_relative": 0.09}
        for name in ("all tensors", "matrices of all blocks"):
            rows.append(filled(schema, tensor=name, status="total", invariant_under=[], **whole))
        rows.append(filled(schema, tensor="classifier.weight", status="B only", invariant_under=[]))
    elif kind == "comparison_kernels":
        place = {"mode": "folded", "part": "attention", "invariant_under": []}
        for block in range(1, blocks + 1):
            for head in range(heads):
                for statistic in ("ov_relative", "qk_relative"):
                    rows.append(filled(schema, statistic=statistic, block=block, head=head, change=float(generator.uniform()), **place))
                for offset in OFFSETS:
                    values = {"label": str(offset), "probe": "digits", "change": float(generator.standard_normal())}
                    rows.append(filled(schema, statistic="recency_curve", block=block, head=head, **place, **values))
    else:
        for statistic, null in (("ov_energy", "energy-matched random difference"), ("qk_contrast", "row signs")):
            for head in range(20):
                first = statistic == "ov_energy"
                values = {"p": (head + 1) / 1000, "smallest_p": 0.001, "significant": first and head < 3, "confirmatory": first}
                family = "confirmatory" if first else "exploratory"
                rows.append(filled(schema, statistic=statistic, null=null, block=1, head=head, family=family, **values))
    return rows


@pytest.mark.parametrize(("blocks", "heads"), [(1, 1), (12, 4), (40, 16)])
@pytest.mark.parametrize("name", DRAWINGS)
def test_nothing_overlaps_or_leaves_the_page(name, blocks, heads):
    kind, drawing = DRAWINGS[name]
    with matplotlib.rc_context(style.RC):
        assert_legible(drawing(made_up(kind, blocks, heads), "first-model 1.0 → second-model seed42"))


def test_without_rotary_positions_the_offsets_say_so():
    with matplotlib.rc_context(style.RC):
        assert "No rotary positions" in text_of(offset_curves([], "a → b"))


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_same_table_gives_the_same_bytes(name, tmp_path):
    kind, _ = DRAWINGS[name]
    tables.write(tmp_path / "table.parquet", kind, made_up(kind, 3, 2), METADATA)
    contents = []
    for _ in range(2):
        outputs = [tmp_path / "figure.pdf", tmp_path / "figure.svg"]
        draw(name, tmp_path / "table.parquet", outputs)
        contents.append([path.read_bytes() for path in outputs])
    assert contents[0] == contents[1]


def test_an_empty_table_is_refused(tmp_path):
    tables.write(tmp_path / "table.parquet", "comparison_nulls", [], METADATA)
    with pytest.raises(InputError, match="no rows to draw"):
        draw("nulls", tmp_path / "table.parquet", [tmp_path / "figure.pdf"])


def test_the_summary_tells_what_was_found(tmp_path: Path):
    rows = {kind: made_up(f"comparison_{kind}", 2, 2) for kind in ("inventory", "nulls")}
    alignment = tables.schemas["comparison_alignment"]
    rows["alignment"] = [filled(alignment, group="heads", found=found) for found in ("identity", "none", "identity")]
    paths = {}
    for kind, content in rows.items():
        paths[kind] = tmp_path / f"{kind}.parquet"
        tables.write(paths[kind], f"comparison_{kind}", content, METADATA)
    decision = tmp_path / "decision.json"
    write_decision(decision, decide([], None, {}))
    write_summary(
        [(paths["inventory"], paths["alignment"], paths["nulls"], decision)],
        {"parquet": tmp_path / "comparison.parquet", "csv": tmp_path / "comparison.csv"},
    )
    (row,) = tables.read(tmp_path / "comparison.parquet", "comparison")
    assert (row["model_a"], row["revision_b"], row["relative_to_a"], row["unmatched"]) == ("first-model", "seed42", 0.088, 1)
    assert (row["heads"], row["units"], row["tests"], row["significant"]) == ("identity and none", None, 20, 3)
    assert row["strongest"] == "block 1 head 0: ov_energy"
    assert row["label"] == json.loads(decision.read_text())["label"] == "abstain"
