"""Schemas are checked at writing, the same rows give the same bytes, and docs/data.md is what the
schemas say.
"""

import re
from pathlib import Path

import pytest

from normgauge.errors import InputError
from normgauge.schemas.__main__ import data_dictionary
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata

ROW = {
    "norm": "ln_f",
    "kind": "LayerNorm",
    "space": "residual",
    "eps": 1e-5,
    "gain": [1.0, 2.0],
    "bias": None,
}


def test_round_trip_and_bytes(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        tables.write(path, "norms", [ROW], {"model": "m"})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert tables.read(paths[0], "norms") == [ROW]
    assert read_metadata(paths[0]) == {"kind": "norms", "model": "m"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "extra": 1}, "unknown fields"),
        ({key: value for key, value in ROW.items() if key != "eps"}, "missing fields"),
        ({**ROW, "eps": None}, "required but null"),
    ],
)
def test_rows_that_break_the_schema_are_refused_and_nothing_is_written(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        tables.write(tmp_path / "a.parquet", "norms", [row], {})
    assert list(tmp_path.iterdir()) == []


def test_reading_another_kind_or_a_broken_file_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    tables.write(path, "norms", [ROW], {})
    with pytest.raises(InputError, match="expected a corpus table"):
        tables.read(path, "corpus")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match="cannot be read as parquet"):
        tables.read(path, "norms")


def test_the_data_dictionary_is_in_step_with_the_schemas():
    document = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert data_dictionary() == document, "run `make docs` after changing a schema"


def test_csv_joins_lists(tmp_path):
    tables.write_csv(tmp_path / "a.csv", "norms", [{**ROW, "gain": ["1", "2"]}])
    assert (
        tmp_path / "a.csv"
    ).read_text() == "norm,kind,space,eps,gain,bias\nln_f,LayerNorm,residual,1e-05,1;2,\n"


def test_links_in_the_documents_lead_somewhere():
    root = Path(__file__).parents[2]
    documents = [
        root / "README.md",
        root / "config" / "README.md",
        root / "benchmarks" / "README.md",
        *(root / "docs").rglob("*.md"),
        *root.glob("C*.md"),
    ]
    links = [
        (document, target)
        for document in documents
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text())
        if "://" not in target
    ]
    assert len(links) > 15
    assert [
        (str(document.name), target)
        for document, target in links
        if not (document.parent / target).exists()
    ] == []
