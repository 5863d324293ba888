"""Tables, figures and the audit page of signed permutations on made-up measurements: numbers,
words, files.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import pytest

from matplotlib_settings import USERS
from normgauge.errors import InputError
from normgauge.render import of_checkpoints
from normgauge.render.drawing import draw
from normgauge.render.formats import percent
from normgauge.render.signed_permutation import tables as summaries
from normgauge.render.signed_permutation.audit_page import draw_page, page
from normgauge.render.signed_permutation.drawings import DRAWINGS
from normgauge.render.signed_permutation.tables import BUILDERS
from normgauge.render.tabulating import write_table
from normgauge.schemas.signed_permutation import tables

IDENTITY = {
    "model": "m$1",
    "revision": "1.0",
    "weights_sha256": "a" * 64,
    "norm_kind": "RMSNorm",
    "placement": "pre-norm",
}


def equivalence(
    group: str,
    admissible: bool,
    dtype: str,
    relative: float,
    verdict: str = "passed",
    seed: int = 42,
) -> dict:
    return {
        "group": group,
        "admissible": admissible,
        "seed": seed,
        "forward_dtype": dtype,
        "parameters": "stored",
        "max_abs_deviation": 10 * relative,
        "relative_deviation": relative,
        "tolerance": 1e-10,
        "predicted_effect": None if admissible else 1.0,
        "verdict": verdict,
    }


def recovered(
    site: str,
    seed: int,
    tokens: int,
    method: str,
    place: float,
    sign: float | None,
    part: str = "residual",
    **more,
) -> dict:
    row = {
        "site": site,
        "part": part,
        "match": "in the group",
        "sites": 3 if site == "all sites" else 1,
        "width": 8,
        "seed": seed,
        "tokens": tokens,
        "effective_tokens": 20.0,
        "method": method,
        "permutation_accuracy": place,
        "sign_accuracy": sign,
        "negative": None if sign is None else 0.5,
        "uncertain": 1 - place,
        "certain_accuracy": 1.0 if place else None,
        "map_error": None,
        "query_error": None,
        "condition": None,
        "min_margin": 0.1,
        "certified": method.startswith("row argmax"),
        "seconds": 0.1,
    }
    return row | more


def audited(claim: str, seed: int, raw: float, mapped: float) -> dict:
    return {
        "claim": claim,
        "site": "decoder/block.1/output",
        "seed": seed,
        "top": 4,
        "width": 8,
        "raw_overlap": raw,
        "mapped_overlap": mapped,
        "chance": 0.5,
        "relative_deviation": 1e-6 * seed,
    }


def aligned(
    other: str,
    site: str,
    tokens: int,
    agreement: float,
    certain: float | None,
    match: str = "in the group",
) -> dict:
    return {
        "other": other,
        "site": site,
        "sites": 2 if site == "all sites" else 1,
        "match": match,
        "width": 8,
        "tokens": tokens,
        "reference_tokens": 100,
        "agreement": agreement,
        "signed_agreement": agreement,
        "split_half": agreement / 2,
        "site_agreement": 0.25 if site == "all sites" else None,
        "certain": 0.5,
        "sign_certain": agreement == 1,
        "certain_agreement": certain,
        "effective_tokens": 9.0,
        "negative": 0.25,
        "unmoved": 0.125,
        "method": "lapjvs on |C|",
        "certified": False,
    }


def carried(artifact: str, seed: int, moved: float, permuted: float, **verdicts: str) -> dict:
    return {
        "artifact": artifact,
        "site": "decoder/block.1/output",
        "seed": seed,
        "forward_dtype": "float64",
        "transported_deviation": moved,
        "permutation_deviation": permuted,
        "raw_deviation": 0.5,
        "permutation_error": 2.0 + seed,
        "predicted_error": 2.0,
        "raw_error": 2.0,
        **{"transported": "passed", "permutation_control": "passed", "raw_control": "passed"},
        **verdicts,
    }


ROWS = {
    "equivalence": [
        equivalence("residual: signed permutation", True, "float64", 1e-15),
        equivalence("residual: signed permutation", True, "float64", 3e-15, seed=43),
        equivalence("residual: signed permutation", True, "float32", 2e-6),
        equivalence("residual: rotation, gains not absorbed", False, "float64", 0.5),
        equivalence("residual: rotation, gains not absorbed", False, "float64", 0.2, seed=43),
    ],
    "gauge_recovery": [
        *(
            recovered(site, seed, tokens, "row argmax on |C|", 1.0, 1.0)
            for site in ("a", "b")
            for seed in (1, 2)
            for tokens in (22, 500)
        ),
        recovered("c", 1, 22, "lapjvs on |C|", 0.5, 0.75),
        *(
            recovered("all sites", seed, tokens, "row argmax on |C|", 1.0, 1.0)
            for seed in (1, 2)
            for tokens in (22, 500)
        ),
        recovered("all sites", 1, 500, "lapjvs on C", 0.5, 0.5, match="control: no signs"),
        recovered("all sites", 2, 500, "lapjvs on C", 0.25, 0.5, match="control: no signs"),
        recovered("all sites", 1, 500, "greedy on |C|", 0.875, 0.875, match="control: greedy"),
        recovered(
            "h",
            1,
            768,
            "canonical correlation",
            1.0,
            None,
            part="heads",
            map_error=1e-5,
            query_error=2e-5,
            condition=7.0,
        ),
        recovered("f", 1, 500, "row argmax on |C|", 1.0, 1.0, part="feed-forward", map_error=1e-6),
    ],
    "gauge_audit": [
        audited(claim, seed, 0.25 * seed, 1.0)
        for claim in ("attribution", "active coordinates")
        for seed in (1, 2)
    ],
    "gauge_alignment": [
        *(aligned("o@1", "all sites", tokens, 0.25, None) for tokens in (10, 100)),
        *(
            aligned("o@1", site, tokens, a, c)
            for site, a, c in (("a", 0.5, None), ("b", 1.0, 1.0))
            for tokens in (10, 100)
        ),
        *(
            aligned("o@1", "all sites", tokens, 0.75, 1.0, "control: free signs")
            for tokens in (10, 100)
        ),
    ],
    "gauge_holonomy": [
        {
            "cycle": "a - b - c",
            "site": site,
            "sites": sites,
            "width": 8,
            "tokens": 100,
            "moved": moved,
            "certain": 0.5,
            "certain_moved": c,
        }
        for site, sites, moved, c in (
            ("all sites", 2, 0.125, None),
            ("x", 1, 0.25, 0.0),
            ("y", 1, 0.75, None),
        )
    ],
    "gauge_transport": [
        carried("LoRA adapter", 1, 1e-15, 0.3),
        carried("LoRA adapter", 2, 4e-15, 0.1),
    ],
}


def measured(folder: Path, kind: str, rows: list[dict] | None = None, **identity: str) -> Path:
    path = folder / f"{kind}.parquet"
    tables.write(path, kind, ROWS[kind] if rows is None else rows, {**IDENTITY, **identity})
    return path


@pytest.mark.parametrize("table", BUILDERS)
def test_every_table_is_written_and_drawn(table, tmp_path):
    (tmp_path / "other").mkdir()
    sources = [
        measured(tmp_path, BUILDERS[table].kind),
        measured(tmp_path / "other", BUILDERS[table].kind, revision="2.0"),
    ]
    parquet, csv = tmp_path / "t.parquet", tmp_path / "t.csv"
    write_table(table, {BUILDERS[table].measured: sources}, parquet, csv)
    assert csv.read_text().count("\n") == 1 + len(tables.read(parquet, table))
    outputs = [tmp_path / "f.pdf", tmp_path / "f.svg"]
    draw(table, parquet, outputs)
    first = [path.read_bytes() for path in outputs]
    with matplotlib.rc_context(USERS):
        draw(table, parquet, outputs)
    assert [path.read_bytes() for path in outputs] == first


def test_exact_recovery_is_summarised_over_sites_and_seeds():
    rows = {
        (row["match"], row["pooled"]): row
        for row in summaries.recovered_gauges(ROWS["gauge_recovery"])
        if row["part"] == "residual"
    }
    assert set(rows) == {
        ("in the group", True),
        ("in the group", False),
        ("control: no signs", True),
        ("control: greedy", True),
    }
    control, alone, together = (
        rows["control: no signs", True],
        rows["in the group", False],
        rows["in the group", True],
    )
    assert (
        control["permutation_accuracy"],
        control["permutation_accuracy_min"],
        control["sites"],
        control["cost"],
    ) == (
        0.375,
        0.25,
        3,
        "C",
    )
    assert (
        alone["permutation_accuracy"],
        alone["sites"],
        alone["seeds"],
        alone["certified"],
        alone["map_error"],
    ) == (1, 2, 2, 1, None)
    assert (together["sites"], together["seeds"]) == (3, 2)
    budgets = {
        row["tokens"]: row
        for row in summaries.probe_budget(ROWS["gauge_recovery"])
        if not row["pooled"]
    }
    assert (
        budgets[22]["permutation_accuracy"],
        budgets[22]["sign_accuracy_min"],
        budgets[22]["certified"],
    ) == (0.9, 0.75, 0.8)
    assert budgets[500]["permutation_accuracy_min"] == 1
    (heads,) = [
        row for row in summaries.recovered_gauges(ROWS["gauge_recovery"]) if row["part"] == "heads"
    ]
    assert (
        heads["sign_accuracy"],
        heads["map_error"],
        heads["query_error"],
        heads["condition"],
    ) == (None, 1e-5, 2e-5, 7.0)


def test_the_other_summaries():
    lines = {
        (row["match"], row["pooled"], row["tokens"]): row
        for row in summaries.alignment_stability(ROWS["gauge_alignment"])
    }
    assert len(lines) == 3 * 2
    few, together, control = (
        lines["in the group", False, 10],
        lines["in the group", True, 10],
        lines["control: free signs", True, 10],
    )
    assert (
        few["sites"],
        few["agreement"],
        few["split_half"],
        few["certain_agreement"],
        few["sign_certain"],
    ) == (2, 0.75, 0.375, 1.0, 0.5)
    assert (few["site_agreement"], few["negative"], few["effective_tokens"]) == (None, 0.25, 9.0)
    assert (together["sites"], together["agreement"], together["site_agreement"]) == (2, 0.25, 0.25)
    assert control["agreement"] == 0.75
    together, alone = summaries.cycles(ROWS["gauge_holonomy"])
    assert (
        together["pooled"],
        together["sites"],
        together["moved"],
        together["certain_moved"],
    ) == (True, 2, 0.125, None)
    assert (alone["pooled"], alone["sites"], alone["moved"], alone["certain_moved"]) == (
        False,
        2,
        0.5,
        0.0,
    )
    names = summaries.name_audit(ROWS["gauge_audit"])
    assert [row["claim"] for row in names] == ["attribution", "active coordinates"]
    assert (
        names[0]["raw_overlap"],
        names[0]["raw_overlap_max"],
        names[0]["mapped_overlap_min"],
    ) == (0.375, 0.5, 1)
    assert names[0]["relative_deviation"] == 2e-6
    (artifact,) = summaries.carried(ROWS["gauge_transport"])
    assert (
        artifact["transported_deviation"],
        artifact["permutation_deviation"],
        artifact["permutation_error"],
    ) == (4e-15, 0.1, 3.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0, "0%"),
        (1, "100%"),
        (0.99999, "99.9%"),
        (1e-6, "0.1%"),
        (0.4965, "49.6%"),
        (0.5, "50.0%"),
    ],
)
def test_a_percentage_says_all_and_nothing_only_where_it_is(value, text):
    assert percent(value) == text


def said(figure) -> str:
    return " ".join(text.get_text() for part in (figure, *figure.axes) for text in part.texts)


def test_the_page_says_what_was_found_and_what_failed():
    kinds = ("equivalence", "gauge_recovery", "gauge_audit", "gauge_transport")
    good = said(page(IDENTITY, *(ROWS[kind] for kind in kinds)))
    assert r"Audit of m\$1 (1.0): RMSNorm, pre-norm" in good
    assert "is kept by every change" in good
    assert "is noticed" in good
    assert "at 4 of 5 sites" in good
    assert not re.search(r"NOT|WRONG", good)
    bad = {kind: [dict(row) for row in ROWS[kind]] for kind in kinds}
    bad["equivalence"][0]["verdict"] = bad["equivalence"][3]["verdict"] = "failed"
    bad["gauge_recovery"][0]["certain_accuracy"] = 0.9
    bad["gauge_transport"][0]["transported"] = bad["gauge_transport"][0]["permutation_control"] = (
        "failed"
    )
    words = said(page(IDENTITY, *bad.values()))
    assert "IS NOT KEPT" in words
    assert "IS NOT ALWAYS NOTICED" in words
    assert "WRONG" in words
    assert "DO NOT ALL ACT AS BEFORE" in words
    assert "NOT ALL ACT OTHERWISE" in words


def test_a_control_without_power_is_never_said_to_have_passed():
    kinds = ("equivalence", "gauge_recovery", "gauge_audit", "gauge_transport")
    void = {kind: [dict(row) for row in ROWS[kind]] for kind in kinds}
    for row in void["equivalence"][3:]:
        row["verdict"] = "no power"
    void["gauge_transport"] = [
        carried("LoRA adapter", 1, 1e-15, 1e-15, permutation_control="no power")
    ]
    words = said(page(IDENTITY, *void.values()))
    assert "some have none" in words
    assert "the permutation alone tells nothing" in words
    (artifact,) = summaries.carried(void["gauge_transport"])
    identity = {key: IDENTITY[key] for key in of_checkpoints.IDENTITY}
    table = DRAWINGS["carried_artifacts"]([{**identity, **artifact}])
    assert said(table).count("no power") == 2  # the row's word, and what it means
    table = DRAWINGS["group_boundary"]([{**identity, **row} for row in void["equivalence"]])
    assert said(table).count("no power") == 2
    assert "Crosses: controls without power" in said(
        DRAWINGS["group_boundary_figure"]([{**identity, **row} for row in void["equivalence"]])
    )


def test_a_page_is_of_one_checkpoint(tmp_path):
    paths = [
        measured(tmp_path, kind)
        for kind in ("equivalence", "gauge_recovery", "gauge_audit", "gauge_transport")
    ]
    draw_page(*paths, [tmp_path / "page.pdf"])
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    with matplotlib.rc_context(USERS):
        draw_page(*paths, [tmp_path / "again.pdf"])
    assert (tmp_path / "again.pdf").read_bytes() == (tmp_path / "page.pdf").read_bytes()
    measured(tmp_path, "gauge_audit", weights_sha256="b" * 64)
    with pytest.raises(InputError, match="belongs to other weights"):
        draw_page(*paths, [tmp_path / "other.pdf"])
    assert not (tmp_path / "other.pdf").exists()
