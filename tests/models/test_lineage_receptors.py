"""The study of lineage on a real model that reads T-cell receptors, which cannot be drawn."""

from __future__ import annotations

import pytest

from normgauge.calibration.corpora import CORPORA, build_corpus
from normgauge.errors import InputError
from normgauge.lineage.evasion import KEEPING
from normgauge.lineage.study import Hiding, write_study
from normgauge.schemas.lineage import tables
from real import real_folder, wheel_path


def test_functions_of_a_receptor_model_are_compared_on_its_corpus(tmp_path):
    corpus = tmp_path / "tcr.parquet"
    build_corpus("tcr", wheel_path(*CORPORA["tcr"].package), corpus)
    names = ("sceptr-default", "sceptr-mlm-only")
    stored = {name: (real_folder(name), None) for name in names}
    outputs = {kind: tmp_path / f"{kind}.parquet" for kind in ("pairs", "evasions", "origins")}
    hidden = [Hiding(*names, seeds=[0])]
    write_study(stored, [], hidden, 99, outputs, corpus)
    rows = tables.read(outputs["evasions"], "lineage_evasions")
    assert {row["verdict"] for row in rows} == {"unrelated by this evidence"}
    changes = {row["keeps_function"]: [] for row in rows}
    for row in rows:
        changes[row["keeps_function"]].append(row["function_change"])
    assert max(changes[True]) < 1e-4 < min(changes[False])
    assert {row["attack"] for row in rows if row["keeps_function"]} <= set(KEEPING)
    with pytest.raises(InputError, match="T-cell receptors are not drawn at random"):
        write_study(stored, [], hidden, 99, outputs)
