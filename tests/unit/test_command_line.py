"""Names of own studies, and configuration files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import LISTS, check_configfile, nearest, own_study

BASE = {
    "study": {"name": "", "models": ["a", "b"]},
    "exact_recovery": {"models": ["a"], "second_route": ["a"], "rows": 8},
    "signed_permutation": {"models": ["a"], "recovered": [], "audited": [], "aligned": []},
    "redundancy": {"models": ["a"], "shapes": ["s.json"], "small": []},
    "checkpoint_comparison": {"pairs": [{"a": "a", "b": "b"}]},
    "trajectories": {"runs": [], "apart": [], "merging": [], "resuming": []},
    "lineage": {"sets": [["a", "b"]], "hidden": []},
}


@pytest.mark.parametrize(
    ("section", "key"), [(section, key) for section, keys in LISTS.items() for key in keys]
)
def test_every_list_that_is_changed_makes_a_study_of_its_own(section: str, key: str) -> None:
    assert own_study(BASE, {section: {key: ["other"]}}, [Path("folder/mine.yaml")]) == "mine"
    assert own_study(BASE, {section: {key: BASE[section][key]}}, [Path("mine.yaml")]) is None


GIVEN = (
    {},
    {"models": {"c": {}}},
    {"threads": 2},
    {"exact_recovery": {"rows": 9}},
    {"study": {"models": ["c"], "name": ""}},
    {"study": 3},
)


@pytest.mark.parametrize("given", GIVEN)
def test_a_name_that_is_given_stays_and_settings_need_none(given: dict) -> None:
    assert own_study(BASE, given, [Path("mine.yaml")]) is None


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["my file.yaml"], "my-file"),
        (["one.yaml", "two.yml"], "one-two"),
        ([], "own"),
        (["-x.yaml"], "x"),
        (["_.yaml"], "own"),
        (["smoke.yaml"], "own-smoke"),
        (["scale.yaml"], "own-scale"),
    ],
)
def test_the_name_is_that_of_the_files(files: list[str], name: str) -> None:
    assert own_study(BASE, {"study": {"models": ["c"]}}, [Path(file) for file in files]) == name


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mine.yml", None, "no such file; the nearest: "),
        ("all_tables", None, "a target comes before --configfile"),
        ("list.yaml", b"- a", "expected keys and values, found list"),
        ("broken.yaml", b"a: [1", "expected YAML in UTF-8"),
        ("latin.yaml", b"a: caf\xe9", "expected YAML in UTF-8"),
    ],
)
def test_a_configuration_that_is_none_is_one_line(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    (tmp_path / "mine.yaml").write_text("a: 1")
    check_configfile(tmp_path / "mine.yaml")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit, match=said) as refused:
        check_configfile(tmp_path / name)
    assert str(refused.value).startswith(f"error: --configfile {tmp_path / name}: ")
    assert "\n" not in str(refused.value)


def test_what_resembles_nothing_has_no_nearest() -> None:
    assert nearest("all_table", ["all_tables", "smoke"]) == "; the nearest: all_tables"
    assert nearest("zzz", ["all_tables", "smoke"]) == ""
