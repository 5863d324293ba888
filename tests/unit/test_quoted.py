"""Figures quoted in prose: drift fails, update mends it, and no number in a section of results goes
without a mark.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from normgauge.errors import InputError
from normgauge.render.quoted.__main__ import DECLARATION, main
from normgauge.render.quoted.declaration import read_declaration
from normgauge.render.quoted.figures import Figures
from normgauge.render.quoted.prose import check_columns, check_prose
from normgauge.tables import write_table

ROOT = Path(__file__).parents[2]
ROWS = {
    "model": ["first", "second", "third"],
    "norm": ["LayerNorm", "LayerNorm", "RMSNorm"],
    "cosine": [1 - 3.21e-13, 1 - 1.2e-14, 0.0123],
    "values": [22_713_216, 1_050, 7],
    "share": [0.0118, 0.5, None],
    "tied": [True, False, False],
}
FIGURES = {
    "kernel": {
        "where": "norm == 'LayerNorm'",
        "value": "1 - cosine",
        "of": "max",
        "format": "{:.0e}",
        "bound": "upper",
    },
    "cosine": {"where": "model == @model", "value": "cosine", "format": "{:.3f}"},
    "values": {"where": "model == @model", "value": "values", "format": "{:,}"},
    "share": {
        "where": "model == @model",
        "value": "100 * share",
        "format": "{:.2f} %",
        "words": {"none": "–"},
    },
    "percent": {"value": "share", "of": "median", "format": "{:.1%}"},
    "tied": {"where": "model == @model", "value": "tied", "words": {"True": "yes", "False": "no"}},
    "total": {"value": "values", "of": "sum", "format": "{:,}"},
    "smallest": {"value": "values", "of": "min"},
    "rows": {"where": "norm == 'LayerNorm'", "of": "count"},
    "norms": {"where": "norm == 'RMSNorm'", "value": "norm"},
}
BENCHMARK = {"speed": {"where": "what == 'moments'", "value": "ratio", "format": "{:.2f}"}}
TEXT = """# A study
Version 2 of it, from 1999.

## Found
The kernel holds up to <!--q:kernel-->{kernel}<!--/q-->; the third reads
<!--q:cosine model=third-->{third}<!--/q-->, a share of <!--q:percent-->{percent}<!--/q-->,
<!--q:rows-->2<!--/q--> rows of <!--q:norms-->RMSNorm<!--/q-->, at least
<!--q:smallest-->7<!--/q-->, in sum <!--q:total-->22,714,273<!--/q-->. At 8192 tokens; `code 77`,
float64, [a link](x/9.md).
It takes <!--q:speed-->1.35<!--/q--> times as long.

<!--t:models-->
| model | values | share | tied |
|---|---|---|---|
| **first** | {values} | 1.18 % (yes) | yes |
| **third** | 7 | – (no) | no |
<!--/t-->

## Afterwards
A chapter without figures: 12.
"""
RIGHT = {"kernel": "4e-13", "third": "0.012", "percent": "25.6%", "values": "22,713,216"}


@pytest.fixture
def repository(tmp_path):
    """A folder with a declaration, a table, a benchmark and a text whose figures are the
    tables'.
    """
    (tmp_path / "docs").mkdir()
    (tmp_path / "results/tables").mkdir(parents=True)
    write_table(tmp_path / "results/tables/sample.parquet", pa.table(ROWS), {})
    (tmp_path / "speed.csv").write_text("# version=1\nwhat,ratio\nmoments,1.349\ncapture,1.1\n")
    declare(tmp_path)
    (tmp_path / "text.md").write_text(TEXT.format(**RIGHT))
    return tmp_path


def declare(folder: Path, sample=FIGURES, documents=None, **more) -> None:
    block = {
        "rows": [{"model": "first"}, {"model": "third"}],
        "columns": {
            "model": "**{model}**",
            "values": "{values}",
            "share": "{share} ({tied})",
            "tied": "{tied}",
        },
    }
    content = {
        "tables": {
            "speed": {"path": "speed.csv"},
            "sample": {"path": "results/tables/sample.parquet"},
        },
        "figures": {"sample": sample, "speed": BENCHMARK},
        "blocks": {"models": block},
        "documents": documents
        or {"text.md": {"results": ["Found"], "definitions": ["At 8192 tokens"]}},
    }
    (folder / DECLARATION).write_text(yaml.safe_dump(content | more, sort_keys=False))


def faults_of(folder: Path, capsys, *options: str) -> list[str]:
    status = main(["--root", str(folder), *options])
    lines = capsys.readouterr().err.splitlines()
    assert status == bool(lines)
    return lines


def test_figures_that_are_the_tables_pass(repository, capsys):
    assert faults_of(repository, capsys) == []


@pytest.mark.parametrize(
    ("figure", "drifted"),
    [("kernel", "3e-13"), ("third", "0.011"), ("percent", "26%"), ("values", "22,713,217")],
)
def test_drift_fails_and_update_mends_it(repository, capsys, figure, drifted):
    (repository / "text.md").write_text(TEXT.format(**RIGHT | {figure: drifted}))
    (fault,) = faults_of(repository, capsys)
    assert re.match(r"text\.md:\d+: .* where the tables give ", fault)
    assert drifted in fault
    assert RIGHT[figure] in fault
    assert faults_of(repository, capsys, "--update") == []
    assert (repository / "text.md").read_text() == TEXT.format(**RIGHT)


def test_a_new_run_changes_the_text_by_one_command(repository, capsys):
    rows = ROWS | {"cosine": [1 - 9.01e-13, 1.0, -0.5], "values": [999, 1, 2]}
    (repository / "new/tables").mkdir(parents=True)
    write_table(repository / "new/tables/sample.parquet", pa.table(rows), {})
    options = ("--results", str(repository / "new"))
    assert len(faults_of(repository, capsys, *options)) == 5
    assert faults_of(repository, capsys, "--update", *options) == []
    text = (repository / "text.md").read_text()
    for words in (
        "up to <!--q:kernel-->1e-12<",
        "-0.500<",
        "-->1,002<",
        "| **first** | 999 |",
        "| **third** | 2 |",
    ):
        assert words in text
    assert len(faults_of(repository, capsys)) == 5


def test_a_bound_is_rounded_away_from_the_value(repository):
    bounds = {
        "low": {"value": "cosine", "of": "min", "format": "{:.3f}", "bound": "lower"},
        "high": {"value": "cosine", "of": "min", "format": "{:.3f}", "bound": "upper"},
        "share-low": {"value": "share", "of": "min", "format": "≥ {:.0%}", "bound": "lower"},
        "share-high": {"value": "share", "of": "min", "format": "≤ {:.0%}", "bound": "upper"},
        "exact": {"value": "share", "of": "max", "format": "{:.1f}", "bound": "upper"},
        "whole": {"value": "values * 1.0", "of": "max", "format": "{:,}"},
    }
    declare(repository, FIGURES | bounds)
    figures = Figures(read_declaration(repository / DECLARATION), repository)
    written = {name: figures.text(name, {}) for name in bounds}
    assert written == {
        "low": "0.012",
        "high": "0.013",
        "share-low": "≥ 1%",
        "share-high": "≤ 2%",
        "exact": "0.5",
        "whole": "22,713,216",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It grew by 3.5 percent.", "neither marked nor allowed: 3.5 in It grew by 3.5 percent."),
        ("Up to −4e-9 of it.", "nor allowed: −4e-9 in"),
        ("| a | 17 % |", "nor allowed: 17 % in"),
        ("<!--q:kernel-->4e-13", "has no partner"),
        ("<!--q:nothing-->5<!--/q-->", "nothing is not declared"),
        ("<!--q:cosine third-->0.012<!--/q-->", "expected words key=value"),
        (
            "<!--q:cosine model=fourth-->0.012<!--/q-->",
            "no row in sample where model == @model (model=fourth)",
        ),
        ("<!--q:cosine-->0.012<!--/q-->", "cosine: local variable 'model' is not defined"),
        ("<!--q:share model=third-->–<!--/q--> and 4", "nor allowed: 4 in"),
    ],
)
def test_what_is_wrong_in_a_text_is_named_with_its_line(repository, capsys, text, said):
    (repository / "text.md").write_text(
        TEXT.format(**RIGHT).replace("## Afterwards", f"{text}\n\n## Afterwards")
    )
    lines = faults_of(repository, capsys)
    assert any(said in line for line in lines), lines
    assert all(line.startswith("text.md:1") for line in lines), lines


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"value": "kosine"},
            "'kosine' is not defined; expected an expression over the columns of sample",
        ),
        ({"where": "model =="}, "expected an expression over the columns"),
        ({"of": "one"}, "3 rows with 3 values, expected one in sample where any row"),
        ({"format": "{:d}", "of": "max"}, "does not fit"),
        ({"format": "no field", "of": "max"}, "has no field"),
        ({"where": "model == 'third'", "value": "share"}, "no value in sample"),
    ],
)
def test_a_figure_that_cannot_be_read_is_one_line(repository, change, said):
    declare(repository, FIGURES | {"wrong": {"value": "cosine"} | change})
    figures = Figures(read_declaration(repository / DECLARATION), repository)
    with pytest.raises(InputError) as raised:
        figures.text("wrong", {})
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{repository / DECLARATION}: wrong: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"figures": {"sample": {"kernel": {"of": "largest", "value": "x"}}}},
            "'largest' is not one of",
        ),
        ({"figures": {"sample": {"kernel": {}}}}, "expected a value, or `of: count` without one"),
        (
            {"figures": {"sample": FIGURES, "speed": {"kernel": {"value": "ratio"}}}},
            "kernel is declared twice",
        ),
        ({"extra": 1}, "'extra' was unexpected"),
        ({"figures": {"unknown": {"kernel": {"value": "x"}}}}, "no table unknown is known"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_one_line(repository, capsys, change, said):
    declare(repository, **change)
    assert any(said in line for line in faults_of(repository, capsys))


def test_a_cell_may_be_absent_a_whole_column_may_not(repository, capsys):
    absent = {
        "maybe": {
            "where": "model == @model and norm == @norm",
            "value": "values",
            "words": {"absent": "–"},
        }
    }
    rows = [{"model": "first"}, {"model": "third"}]
    for norm, said in (
        ("RMSNorm", "| third | 7 |"),
        ("GroupNorm", "column 'values': no row of the table for any"),
    ):
        block = {"rows": rows, "columns": {"model": "{model}", "values": f"{{maybe norm={norm}}}"}}
        declare(repository, FIGURES | absent, blocks={"models": block})
        assert any(said in line for line in faults_of(repository, capsys))


def test_a_table_that_is_not_there_is_named(repository, capsys):
    (repository / "results/tables/sample.parquet").unlink()
    assert (
        "sample.parquet is not there; run the target that makes it"
        in faults_of(repository, capsys)[0]
    )


def test_what_is_declared_in_vain_is_named(repository, capsys):
    document = {"results": ["Found", "Lost"], "notes": ["At 8192 tokens", "in 1999"]}
    declare(repository, FIGURES | {"idle": {"of": "count"}}, {"text.md": document})
    said = faults_of(repository, capsys)
    for words in (
        "no heading 'Lost'",
        "the allowed 'in 1999' does not occur",
        "idle is quoted nowhere",
    ):
        assert any(words in line for line in said)


# ---------------------------------------------------------------- the repository's own texts


@pytest.fixture
def own(tmp_path):
    """The declaration of the repository, and its figures without any result: what is checked is
    what a fresh clone has.
    """
    declaration = read_declaration(ROOT / DECLARATION)
    return declaration, Figures(declaration, ROOT, tmp_path)


def test_every_mark_is_declared_every_number_marked_and_every_benchmark_as_measured(own):
    faults = [
        str(fault)
        for fault in check_prose(*own, ROOT)
        if "is not there; run the target" not in str(fault)
    ]
    assert faults == []
    assert own[1].read > 10


def test_every_figure_names_columns_that_the_schemas_have(own):
    check_columns(*own, ROOT)
