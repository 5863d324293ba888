"""The ledger: numbers of a text, claims, their statuses, and the files of config/published/."""

import csv
from pathlib import Path

import pandas
import pytest
import yaml
from matplotlib.text import Text

from normgauge.errors import InputError
from normgauge.ledger.computed import computed
from normgauge.ledger.judgement import Measured, judged
from normgauge.ledger.table import AT_SCALE, ledger_rows, write_ledger
from normgauge.published import __main__ as command
from normgauge.published.claims import Claim, published_files, read_claims, read_document
from normgauge.published.numbers import FIELDS, REASONS, covered, numbers_of, read_list, uncovered
from normgauge.render.ledger.drawings import DRAWINGS
from normgauge.schemas.ledger import Status, tables
from normgauge.schemas.registry import SCHEMAS

ROOT = Path(__file__).parents[2]
FILES = published_files(ROOT / "config" / "published")
TEXT = r"""# A.5 A heading with 3 models
N = 8,192 and 8{,}192 of $1.96\cdot 10^{-3}$, at most 10⁻⁶²⁵⁰ or $10^{4}$.
From −0.03 to +0.08, 1e−13 and 3.725e-09; not fp64, X_{0}: X_0, h.0 or QR$2$.
Ranges 3–18, 50c674a8d7a91b94 and 5 %.
"""
WRITTEN = ["3", "8192", "8192", "1.96e-3", "1e-6250", "1e4", "-0.03", "+0.08", "1e-13"]
WRITTEN += ["3.725e-09", "0", "2", "3", "18", "50c674a8d7a91b94", "5"]


@pytest.fixture(scope="module")
def claims() -> dict[Path, list[Claim]]:
    return {path: read_claims(path) for path in FILES}


def empty(name: str) -> pandas.DataFrame:
    if name in AT_SCALE:
        return pandas.read_csv(ROOT / AT_SCALE[name], comment="#").iloc[:0]
    return SCHEMAS[name].empty_table().to_pandas()


def test_numbers_of_a_text() -> None:
    found = list(numbers_of(TEXT))
    assert [number.written for number in found] == WRITTEN
    assert {number.section for number in found} == {"A.5 A heading with"}
    assert (found[1].line, found[1].words) == (2, "and")
    assert all(len(number.words.split()) <= 3 for number in found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_number_is_without_a_claim_or_a_reason(path: Path, claims) -> None:
    passages = read_list(path.parent / "numbers" / f"{path.stem}.csv")
    assert uncovered(passages, claims[path]) == []
    assert sum(len(passage.numbers) for passage in passages) > 50
    assert all(len(passage.words.split()) <= 3 for passage in passages)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_claim_of_a_whole_table_says_how_many_numbers_it_covers(path: Path, claims) -> None:
    counts = covered(read_list(path.parent / "numbers" / f"{path.stem}.csv"))
    whole = [claim for claim in claims[path] if claim.written.endswith(" numbers")]
    assert [claim.written for claim in whole] == [f"{counts[c.name]} numbers" for c in whole]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_claim_is_without_a_status_whatever_is_measured(path: Path) -> None:
    """Without any table, and with every table empty: then nothing is reproduced by measurement."""
    for frames in ({}, {name: empty(name) for name in [*SCHEMAS, *AT_SCALE]}):
        rows = list(ledger_rows(path, frames))
        assert {row["status"] for row in rows} <= set(Status)
        assert all(row["why"].endswith((".", ")")) for row in rows)
        measured = [row for row in rows if not (row["source"] or "computed").startswith("computed")]
        assert not any(
            row["status"] in (Status.REPRODUCED, Status.DEVIATES)
            for row in measured
            if row["ours"] is None
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_selections_name_tables_and_columns(path: Path, claims) -> None:
    for claim in claims[path]:
        if claim.ours is not None:
            assert {claim.ours.table} <= {*SCHEMAS, *AT_SCALE}, claim.name
            claim.ours.values(empty(claim.ours.table))


def test_shares_of_redundant_parameters_are_those_that_the_study_reads(claims) -> None:
    (path,) = [path for path in FILES if path.stem == "redundancy"]
    read = yaml.safe_load((ROOT / "config" / "claims.yaml").read_text())
    names = {"gpt2": "share-gpt2", "gpt2-xl": "share-gpt2-xl", "llama-65b": "share-llama"}
    given = {claim.name: claim.value for claim in claims[path]}
    assert {shape: given[name] for shape, name in names.items()} == {
        shape: entry["published_share"] for shape, entry in read.items()
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_hub_ids_are_entries_or_are_said_to_be_none(path: Path, claims) -> None:
    known = set()
    for name in ("models.yaml", "paper.yaml"):
        known |= set(yaml.safe_load((ROOT / "config" / name).read_text())["models"])
    lacking = set(read_document(path).get("checkpoints", {}))
    assert not lacking & known, "it has an entry now: leave it out of checkpoints"
    assert {claim.hub for claim in claims[path]} - {None} <= known | lacking


def test_the_committed_tables_are_there() -> None:
    assert all((ROOT / path).is_file() for path in AT_SCALE.values())


def test_sizes_of_gpt2_are_those_of_its_recovered_shape(claims) -> None:
    """The arithmetic of the claims against the parameters that were counted in a real model."""
    rows = pandas.read_csv(ROOT / AT_SCALE["exact_recovery_at_scale"], comment="#")
    counted = rows[rows["model"] == "gpt2-124m"].set_index("population")["values"]
    (path,) = [path for path in FILES if path.stem == "exact_recovery"]
    given = {claim.name: claim for claim in claims[path]}
    assert given["parameters-all"].value == counted["all"]
    assert given["parameters-no-norm"].value == counted["no norm"]
    assert given["parameters-with-norms"].value == counted["no norm"] + counted["norm"]


def written(tmp_path: Path, numbers: str, *entries: dict, **group: object) -> Path:
    """A file of claims with a list in which every number points to the claim `a`."""
    path = tmp_path / "published" / "study.yaml"
    (path.parent / "numbers").mkdir(parents=True, exist_ok=True)
    defaults = {"place": "here", "quantity": "a number", "kind": "exact"}
    document = {
        "title": "A paper",
        "source": "somewhere",
        "groups": [defaults | group | {"claims": [{"name": "a"} | entry for entry in entries]}],
    }
    path.write_text(yaml.safe_dump(document))
    with open(path.parent / "numbers" / "study.csv", "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(FIELDS)
        writer.writerow([1, "1", "a word", numbers, "a"])
    return path


MEASURED = {"table2": pandas.DataFrame({"model": ["m", "n"], "n": [64, 64], "blocks": [12, 6]})}
OURS = {"table": "table2", "where": "model == 'm'", "value": "blocks"}


@pytest.mark.parametrize(
    ("entry", "status", "ours"),
    [
        ({"value": 12, "ours": OURS}, Status.REPRODUCED, "12"),
        ({"value": 13, "tolerance": 1, "ours": OURS}, Status.REPRODUCED, "12"),
        ({"value": 14, "tolerance": 1, "ours": OURS}, Status.DEVIATES, "12"),
        ({"value": 14, "relation": "<=", "ours": OURS}, Status.REPRODUCED, "12"),
        ({"value": 14, "relation": ">=", "ours": OURS}, Status.DEVIATES, "12"),
        ({"value": 14, "kind": "setting", "ours": OURS}, Status.SETTING, "12"),
        ({"value": 3, "ours": OURS | {"where": "model == 'x'"}}, Status.UNMEASURED, None),
        ({"value": 3, "ours": OURS | {"table": "table1"}}, Status.UNMEASURED, None),
        ({"value": 3, "hub": "m", "ours": OURS | {"where": "model == 'x'"}}, Status.HUB, None),
        ({"value": 8, "computed": "2**3"}, Status.REPRODUCED, "8"),
        ({"value": 9, "computed": "2**3"}, Status.DEVIATES, "8"),
        ({"value": 3, "hub": "m", "check": "6 / 2"}, Status.HUB, None),
        ({"value": 3, "hub": "m", "check": "7 / 2"}, Status.CONTRADICTED, None),
        ({"value": 3, "status": "cannot be had", "reason": "Lost."}, Status.CLOSED, None),
    ],
)
def test_statuses(tmp_path: Path, entry: dict, status: Status, ours: str | None) -> None:
    path = written(tmp_path, str(entry["value"]), entry)
    (row,) = ledger_rows(path, MEASURED)
    assert (row["status"], row["ours"], row["numbers"]) == (status, ours, 1)


def test_singular_values_are_compared_at_the_published_number_of_samples(tmp_path: Path) -> None:
    """At a quarter of the samples ours is half as large."""
    entry = {"value": 10.0, "tolerance": 0.5, "row": "M"}
    entry["ours"] = {"table": "table2", "model": "m", "value": "body_sigma_low"}
    path = written(tmp_path, "10", entry)
    document = yaml.safe_load(path.read_text())
    sample = {"table": "table2", "row": "M", "n": 256, "source": "its caption"}
    path.write_text(yaml.safe_dump(document | {"samples": [sample]}))
    frame = pandas.DataFrame({"model": ["m"], "n": [64], "body_sigma_low": [5.1]})
    (row,) = ledger_rows(path, {"table2": frame})
    assert (row["status"], row["ours_value"]) == (Status.REPRODUCED, pytest.approx(10.2))
    (row,) = ledger_rows(path, {"table2": frame.assign(n=256)})
    assert row["status"] == Status.DEVIATES


def test_the_committed_run_answers_where_the_study_has_no_row(tmp_path: Path) -> None:
    entry = {"value": 6, "ours": OURS | {"where": "model == 'large'"}}
    path = written(tmp_path, "6", entry)
    frame = pandas.DataFrame({"model": ["large"], "blocks": [6]})
    (row,) = ledger_rows(path, MEASURED | {"table2_at_scale": frame})
    assert (row["status"], row["source"]) == (Status.REPRODUCED, "table2_at_scale")


def test_a_number_without_a_row_and_a_row_without_a_number_are_faults(tmp_path: Path) -> None:
    path = written(tmp_path, "7 8", {"value": 7, "hub": "m"}, {"name": "b", "value": 5, "hub": "m"})
    passages = read_list(path.parent / "numbers" / "study.csv")
    assert uncovered(passages, read_claims(path)) == ["claim b: no number of the text points to it"]
    (fault,) = uncovered(passages, [])
    assert fault == ("line 1: 7 8: covered by a, which is neither a claim nor a reason")
    path = written(tmp_path, "8", {"value": 7, "hub": "m"})
    (fault,) = uncovered(read_list(path.parent / "numbers" / "study.csv"), read_claims(path))
    assert fault == "claim a: 7 is not among the numbers that point to it: 8"
    with pytest.raises(InputError, match=r"study.yaml: 1 faults between claims and numbers"):
        list(ledger_rows(path, {}))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"value": 1}], "claim a has no way to a status"),
        ([{"value": 1, "status": "cannot be had"}], "claim a: status without reason"),
        ([{"value": 1, "hub": "m"}, {"value": 2, "hub": "m"}], "claim a stands there twice"),
        ([{"hub": "m"}], "claim a has neither value nor written"),
        ([{"value": 1, "hub": "m", "knd": "exact"}], "'knd' was unexpected"),
        ([{"value": 1, "ours": {"value": "blocks"}}], "claim a: ours without a table"),
    ],
)
def test_claims_without_what_they_need_are_refused(tmp_path: Path, entries, message) -> None:
    with pytest.raises(InputError, match=message):
        read_claims(written(tmp_path, "1", *entries))


@pytest.mark.parametrize("text", ["__import__('os')", "2 **", "x", "1 / 0", "sqrt(-1)", "'a'"])
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected one of gpt2_probe_hash"):
        computed(text)


def test_a_selection_that_does_not_fit_its_table_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, "1", {"value": 1, "ours": OURS | {"value": "block"}})
    with pytest.raises(InputError, match=r"claim a of study: .*block.* columns of table2"):
        list(ledger_rows(path, MEASURED))
    claim = read_claims(written(tmp_path, "1", {"value": 1, "ours": OURS | {"where": "n == 64"}}))
    with pytest.raises(InputError, match="2 rows with 2 values"):
        judged(claim[0], Measured(MEASURED, {}, {}))


def test_the_ledger_is_written_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path, "12 12", {"value": 12, "ours": OURS})
    pandas.DataFrame({"model": ["m"], "blocks": [12]}).to_csv(tmp_path / "t.csv", index=False)
    files = tmp_path / "ledger.parquet", tmp_path / "ledger.csv"
    write_ledger([path], {"table2": [tmp_path / "t.csv"]}, *files)
    (row,) = tables.read(files[0], "ledger")
    assert (row["status"], row["numbers"], row["study"]) == ("reproduced", 2, "study")
    assert files[1].read_text().splitlines()[1].startswith("study,a,here,a number,12,12.0,exact")


def test_the_drawings_count_every_claim_and_show_the_measured_ones(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "12 13 4",
        {"value": 12, "ours": OURS},
        {"name": "b", "value": 13, "ours": OURS, "reason": "Ours is smaller.", "spelled": True},
        *({"name": f"c{i}", "value": 4, "hub": "m", "spelled": True} for i in range(3)),
    )
    rows = list(ledger_rows(path, MEASURED))
    shown = [text.get_text() for text in DRAWINGS["ledger_counts"](rows).findobj(Text)]
    for line in ("study", "all"):
        start = shown.index(line, shown.index("study") + 1)
        assert shown[start + 1 : start + 10] == ["3", "5", "1", "1", "0", "3", "0", "0", "0"]
    shown = [text.get_text() for text in DRAWINGS["ledger"](rows).findobj(Text)]
    assert shown.index("study: reproduced") < shown.index("study: deviates")
    assert "Ours is smaller." in shown
    assert any(text.startswith("3 claims") for text in shown)


def test_a_text_is_compared_with_its_list(tmp_path: Path, capsys) -> None:
    text = tmp_path / "paper.md"
    text.write_text(TEXT)
    assert command.main([str(text)]) == 0
    begun = capsys.readouterr().out
    assert len(begun.splitlines()) == 1 + len(WRITTEN)
    (reason, *_) = REASONS
    lines = [line + reason if number else line for number, line in enumerate(begun.splitlines())]
    listed = tmp_path / "list.csv"
    listed.write_text("\n".join(lines) + "\n")
    assert command.main([str(text), str(listed)]) == 0
    text.write_text(TEXT.replace("8,192 and", "8,193 and"))
    assert command.main([str(text), str(listed)]) == 1
    assert "line 2: 8193 is not listed\nline 2: 8192 is not in the text" in capsys.readouterr().out
    assert command.main([str(tmp_path / "none")]) == 1
