"""Tables and figures of learned artifacts are legible, and say where nothing is called."""

from __future__ import annotations

import pytest

from normgauge.render.drawing import draw
from normgauge.render.tabulating import write_table
from normgauge.schemas.learned_artifacts import tables
from unit.test_controls import filled
from unit.test_render import assert_legible, visible_texts

IDENTITY = {
    "model": "llama-nano",
    "revision": "seed42",
    "norm_kind": "RMSNorm",
    "placement": "pre-norm",
}


def artifact(name, space, seed, **changes):
    row = {
        "artifact": name,
        "space": space,
        "seed": seed,
        "strength": 8.0 if name == "steering vector" else None,
        "features": 1024 if name == "dictionary" else None,
        "detectable": True,
        "permutation_control": "passed",
        "raw_control": "passed",
        "transported": "passed",
        "signed_kept": 1.0,
        "permutation_kept": 0.31,
        "raw_kept": -0.05,
        **changes,
    }
    return filled(tables.schemas["learned_artifact"], **row)


ROWS = [
    artifact(name, space, seed)
    for name, space in (
        ("steering vector", "feed-forward units"),
        ("dictionary", "residual stream"),
        ("LoRA adapter", "residual stream"),
    )
    for seed in (42, 43)
]
SILENT = artifact(
    "steering vector",
    "residual stream",
    42,
    strength=1.0,
    detectable=False,
    signed_kept=None,
    permutation_kept=None,
    raw_kept=None,
    transported="no power",
    permutation_control="no power",
    raw_control="no power",
)
AUDITS = [
    filled(
        tables.schemas["learned_audit"], claim=claim, seed=seed, top=20, width=1024, raw_overlap=0.1
    )
    for claim in ("attribution", "active dictionary features")
    for seed in range(42, 62)
]


@pytest.fixture
def written(tmp_path):
    for kind, name, rows in (
        ("learned_artifact", "learned_artifacts", [*ROWS, SILENT]),
        ("learned_audit", "learned_audits", AUDITS),
    ):
        measured = tmp_path / f"{kind}.parquet"
        tables.write(measured, kind, rows, IDENTITY)
        key = "learned" if kind == "learned_artifact" else kind
        write_table(name, {key: [measured]}, tmp_path / f"{name}.parquet", tmp_path / f"{name}.csv")
    return tmp_path


@pytest.mark.parametrize(
    ("drawing", "table"),
    [
        ("learned_artifacts", "learned_artifacts"),
        ("learned_artifacts_figure", "learned_artifacts"),
        ("learned_audits", "learned_audits"),
    ],
)
def test_each_is_drawn_from_its_table(written, drawing, table):
    draw(drawing, written / f"{table}.parquet", [written / "drawn.pdf"])
    assert (written / "drawn.pdf").stat().st_size > 1000


def test_what_is_not_called_is_said(written):
    from normgauge.render import style
    from normgauge.render.learned_artifacts.kept_effects import kept_effects
    from normgauge.render.learned_artifacts.typeset import learned_artifacts

    rows = tables.read(written / "learned_artifacts.parquet", "learned_artifacts")
    with style.look():
        table, figure = learned_artifacts(rows), kept_effects(rows)
        assert_legible(table)
        shown = [text.get_text() for text in visible_texts(table)[0]]
        said = " ".join(text.get_text() for text in visible_texts(figure)[0])
    assert sum("not called" in text for text in shown) >= 3
    assert "Artifacts with an effect of 0.1 or less are left out: " in said


def test_names_are_counted_over_seeds(written):
    rows = tables.read(written / "learned_audits.parquet", "learned_audits")
    assert [(row["claim"], row["seeds"]) for row in rows] == [
        ("attribution", 20),
        ("active dictionary features", 20),
    ]
    assert rows[0]["raw_overlap"] == pytest.approx(0.1)
