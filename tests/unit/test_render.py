"""Result tables, typeset tables and figures on made-up results: numbers, marks, layout, bytes."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy
import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from matplotlib_settings import USERS
from normgauge.errors import InputError
from normgauge.exact_recovery.tabulate import write_tables as write_recovery
from normgauge.published.cells import Published, read_published
from normgauge.render import style
from normgauge.render.dead_directions.drawings import DRAWINGS
from normgauge.render.dead_directions.fingerprint_rows import table2
from normgauge.render.dead_directions.growth_rows import trained_vs_random
from normgauge.render.dead_directions.profile_rows import figure3, figure6
from normgauge.render.dead_directions.schur_ratio_rows import table1
from normgauge.render.dead_directions.tables import BUILDERS as TABLES
from normgauge.render.drawing import draw
from normgauge.render.exact_recovery.drawings import DRAWINGS as RECOVERY_DRAWINGS
from normgauge.render.formats import number
from normgauge.render.labels import input_notes
from normgauge.render.subjects import RANDOM, Subject, read_subjects
from normgauge.render.tabulating import write_table
from normgauge.render.text import Ruler
from normgauge.schemas import exact_recovery as recovery_schemas
from normgauge.schemas.fingerprint import tables
from result_samples import SEEDS, STUDY, Sample, filled, write_results

PUBLISHED = Path(__file__).parents[2] / "config" / "published" / "dead_directions.yaml"
RECOVERY = (
    "exact_recovery",
    "exact_recovery_map",
    "exact_recovery_null",
    "exact_recovery_margins",
    "exact_recovery_columns",
    "exact_recovery_minimum_norm",
    "exact_recovery_calls",
)
NAMES = tuple(DRAWINGS)
BUILDERS = {"table1": table1, "table2": table2, "trained_vs_random": trained_vs_random}
KINDS = ("fingerprint", "schur")


def many(count: int) -> list[Sample]:
    """Samples with long names, in one arithmetic."""
    checkpoints = [sample for sample in STUDY if not sample.is_random]
    long = "organisation/a-rather-long-model-name_with.many-parts"
    return [
        replace(
            checkpoints[index % len(checkpoints)],
            model=f"{(long if index % 3 else 'model').replace('/', '-')}-{index}",
            dtypes=("float32",),
        )
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def published() -> list[Published]:
    return read_published(PUBLISHED)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_results(tmp_path_factory.mktemp("study"), STUDY)


@pytest.fixture(scope="module")
def subjects(study: list[Path]) -> list[Subject]:
    return read_subjects(study, KINDS)


def rows_of(name: str, subjects: list[Subject], published: list[Published]) -> list[dict]:
    builders = {
        **BUILDERS,
        "figure3": lambda subjects, _: figure3(subjects),
        "figure6": lambda subjects, _: figure6(subjects),
    }
    return builders[name](subjects, published)


@pytest.fixture(scope="module")
def drawn(subjects: list[Subject], published: list[Published]) -> dict[str, Figure]:
    """Every target drawn from the study; not to be changed."""
    return {name: DRAWINGS[name](rows_of(name, subjects, published)) for name in NAMES}


def row(rows: list[dict], model: str, **values: object) -> dict:
    return next(
        each
        for each in rows
        if each["model"] == model and all(each[key] == value for key, value in values.items())
    )


def test_generated_inputs_are_noted() -> None:
    assert input_notes({"inputs": "random-tokens"}) == ["reads generated inputs (random-tokens)"]
    assert input_notes({"inputs": "noise as audio, kjv"}) == [
        "hears seeded Gaussian noise, not speech"
    ]
    assert input_notes({"inputs": "kjv"}) == []
    assert input_notes({"inputs": "kjv, behind token 2"}) == [
        "every sequence begins with the token 2"
    ]


def test_a_beginning_of_text_token_is_named_beside_the_corpus(tmp_path: Path) -> None:
    inputs = write_results(tmp_path, [replace(STUDY[0], model="begun")])
    (path,) = [
        path
        for path in inputs
        if path.name == "stacks.parquet" and path.parent.name != "reinitialised"
    ]
    assert read_subjects(inputs, ())[0].inputs == "kjv"
    tables.write(
        path,
        "stacks",
        tables.read(path, "stacks"),
        {"calibration_bos": "tokenizer", "calibration_bos_ids": "2"},
    )
    assert read_subjects(inputs, ())[0].inputs == "kjv, behind token 2"


# --- result tables ---


def schur(
    block: int,
    delta: float | None,
    *,
    tap: str = "query_key_value_input",
    below: bool = False,
    **more: object,
) -> dict:
    place = {
        "site": f"decoder/block.{block}/{tap}",
        "stack": "decoder",
        "block": block,
        "tap": tap,
        "n": 8192,
        "d": 64,
    }
    place |= {"forward_dtype": "float32", "accumulation": "cov64", "lambda_min": 1.0, "floor": 0.5}
    return (
        filled(
            tables.schemas["schur"],
            **place,
            delta_recovered=delta,
            quadratic_form=2.0,
            below_floor=below,
        )
        | more
    )


def subject(trained: list[dict], random: list[dict], model: str = "some-model") -> Subject:
    stack = filled(
        tables.schemas["stacks"],
        model=model,
        stack="decoder",
        primary=True,
        norm_kind="LayerNorm",
        placement="pre-norm",
        provenance="published",
        precision="full",
    )
    return Subject(model, "1", "F32", "kjv", stacks=[stack], schur=trained, random_schur=random)


def test_table1_pools_blocks_and_seeds_at_the_query_key_value_input_alone() -> None:
    deltas = [0.1, 0.5, 0.2, 0.9, 0.4, 0.3]
    random = [
        schur(1 + index % 2, delta, seed=42 + index // 2) for index, delta in enumerate(deltas)
    ]
    random += [schur(1, 0.99, tap="mlp_up_input", seed=42), schur(3, None, seed=42)]
    trained = [schur(1, 0.7, below=True), schur(2, 0.8), schur(3, 0.6), schur(4, 0.9)]
    (found,) = table1([subject(trained, random)], [])
    quartiles = tuple(
        found[f"random_{name}"] for name in ("first_quartile", "median", "third_quartile")
    )
    assert quartiles == tuple(numpy.percentile(deltas, (25, 50, 75)))
    assert (found["random_values"], found["random_seeds"], found["random_below_floor"]) == (
        6,
        3,
        0.0,
    )
    assert (found["trained_values"], found["trained_median"], found["trained_below_floor"]) == (
        4,
        pytest.approx(0.75),
        0.25,
    )
    assert (found["trained_quadratic_form"], found["trained_floor"]) == (2.0, 0.5)
    assert (found["random_status"], found["trained_status"], found["deviations"]) == (
        "not published",
        "not published",
        [],
    )


def test_a_lower_bound_on_delta_counts_as_one() -> None:
    """The value read where lambda_min is lost, 0.9, is not used; the median is a bound when a bound
    lies at or below it.
    """
    exact = [schur(1, 0.5), schur(2, 0.6)]
    for bound, median, bounded in ((0.55, 0.55, True), (0.3, 0.5, True), (0.8, 0.6, False)):
        (found,) = table1([subject([*exact, schur(3, 0.9, delta_lower=bound)], [])], [])
        assert (found["trained_median"], found["trained_lower_bound"]) == (median, bounded)
    assert not table1([subject(exact, [])], [])[0]["trained_lower_bound"]
    record = Published("table1", "Some", "some-model", "trained_median", 0.9, 0.02, "statistical")
    for published, status in ((0.9, "lower bound"), (0.55, "reproduced"), (0.4, "deviates")):
        (found,) = table1(
            [subject([schur(1, 0.99, delta_lower=0.55)], [])], [replace(record, value=published)]
        )
        assert found["trained_status"] == status
        assert found["deviations"] == (["trained_median"] if status == "deviates" else [])


def test_a_lower_bound_is_printed_as_one_and_rounded_down() -> None:
    rows = table1([subject([schur(1, 0.99999, delta_lower=0.99996)], [])], [])
    texts = [text.get_text() for text in DRAWINGS["table1"](rows).findobj(Text)]
    assert any(text.startswith("≥ 0.9999 ") for text in texts)
    assert not any(text.startswith(("1.0000", "≥ 1.0000")) for text in texts)


def test_the_prediction_stands_beside_the_ratio() -> None:
    trained = [
        schur(
            block,
            delta,
            predicted_ratio=ratio,
            mahalanobis_squared=1 / ratio - 1,
            bottom_cos_gamma_inv=0.9 + block / 100,
        )
        for block, delta, ratio in ((1, 0.7, 0.31), (2, 0.8, 0.22), (3, 0.9, 0.1))
    ]
    (found,) = table1([subject(trained, [])], [])
    assert found["trained_predicted"] == pytest.approx(0.78)
    assert found["trained_mahalanobis_squared"] == pytest.approx(1 / 0.22 - 1)
    assert found["trained_bottom_cos_gamma_inv"] == pytest.approx(0.92)
    assert found["random_predicted"] is None


@pytest.mark.parametrize(
    ("ours", "below", "status"),
    [
        (0.51, False, "reproduced"),
        (0.49, False, "reproduced"),
        (0.53, False, "deviates"),
        (0.51, True, "below floor"),
        (None, False, "not measured"),
    ],
)
def test_status_against_the_published_value(ours: float | None, below: bool, status: str) -> None:
    record = Published("table1", "Some", "some-model", "trained_median", 0.5, 0.02, "statistical")
    (found,) = table1([subject([schur(1, ours, below=below)], [])], [record])
    assert (found["trained_status"], found["random_status"]) == (status, "not published")
    assert found["published_trained_median"] == 0.5
    assert found["deviations"] == (["trained_median"] if status == "deviates" else [])
    (other,) = table1([subject([schur(1, ours)], [], model="other")], [record])
    assert other["trained_status"] == "not published"
    assert other["published_trained_median"] is None


def test_words_and_settings_of_the_published_table2(subjects: list[Subject]) -> None:
    model = "llama-nano"
    word = Published(
        "table2", "Some", model, "behaviour_smallest_active", "intermediate-dip", 0, "exact"
    )
    setting = Published("table2", "Some", model, "n_over_d", 85.0, 0.5, "setting")
    assert row(table2(subjects, [word, setting]), model, kind="trained")["status"] == "reproduced"
    wrong = replace(word, value="depth-invariant")
    found = row(table2(subjects, [wrong, setting]), model, kind="trained")
    assert (found["status"], found["deviations"]) == ("deviates", ["behaviour_smallest_active"])
    assert row(table2(subjects, [setting]), model, kind="trained")["status"] == "not published"
    assert row(table2(subjects, [wrong]), model, kind="re-initialised")["status"] == "not published"


def test_singular_values_are_compared_per_root_of_their_number_of_samples() -> None:
    """A model whose activations repeat four times has twice the singular values, and the same
    status.
    """
    low = Published(
        "table2", "Some", "some-model", "body_sigma_low", 2.0, 0.2, "statistical", n=65536
    )
    high = replace(low, column="body_sigma_high", value=50.0, tolerance=5.0)

    def found(n: int, scale: float) -> dict:
        own = subject([], [])
        stack = own.stacks[0] | {
            "n": n,
            "body_sigma_low": 2.1 * scale,
            "body_sigma_high": 49.0 * scale,
        }
        (made,) = table2([replace(own, stacks=[stack])], [low, high])
        return made

    for n, scale in ((65536, 1.0), (4 * 65536, 2.0), (65536 // 4, 0.5)):
        made = found(n, scale)
        assert (made["status"], made["deviations"]) == ("reproduced", [])
        assert made["body_sigma_low_per_sqrt_n"] == pytest.approx(2.1 / 256)
        assert made["published_body_sigma_high_per_sqrt_n"] == pytest.approx(50 / 256)
        assert made["published_n"] == 65536
    assert found(65536, 2.0)["deviations"] == ["body_sigma_low", "body_sigma_high"]


def stated(table: str, column: str, value: float, **keys: object) -> dict:
    """A claim on a model `a`, in the row A of a table."""
    ours = {"table": table, "model": "a", "value": column}
    return {"name": column, "quantity": column, "row": "A", "value": value, "ours": ours} | keys


def document(*claims: dict) -> dict:
    """A file of claims as it is read from YAML."""
    groups = [{"place": "a table", "claims": list(claims)}]
    return {"title": "A paper", "source": "somewhere", "groups": groups}


def test_a_published_singular_value_without_its_number_of_samples_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "published.yaml"
    claim = stated("table2", "body_sigma_low", 2.0, tolerance=0.2, kind="statistical")
    sample = {"table": "table2", "row": "A", "n": 8192, "source": "its caption"}
    path.write_text(yaml.safe_dump(document(claim) | {"samples": [sample]}))
    assert read_published(path)[0].n == 8192
    path.write_text(yaml.safe_dump(document(claim)))
    with pytest.raises(
        InputError,
        match=r"published.yaml: body_sigma_low of A grows .* under samples, table table2",
    ):
        read_published(path)
    path.write_text(yaml.safe_dump(document(claim) | {"samples": [sample | {"n": 0}]}))
    with pytest.raises(InputError, match=r"published.yaml: entry 1 of samples must have exactly"):
        read_published(path)


def test_the_published_numbers_of_samples_agree_with_the_printed_ratios(
    published: list[Published],
) -> None:
    values = {(record.table, record.row, record.column): record for record in published}
    ratios = [record for record in published if record.column == "n_over_d"]
    assert len(ratios) == 14
    for record in ratios:
        width = values[record.table, record.row, "width"].value
        assert record.n is not None
        assert abs(record.n / width - record.value) <= record.tolerance, record.row


def test_published_numbers_belong_to_the_primary_stack(subjects: list[Subject]) -> None:
    record = Published(
        "trained_vs_random", "Some", "whisper-tiny-en", "trained_max_ratio", 1.0, 0.1, "statistical"
    )
    rows = trained_vs_random(subjects, [record])
    assert row(rows, "whisper-tiny-en", stack="decoder")["trained_status"] == "deviates"
    assert row(rows, "whisper-tiny-en", stack="encoder")["trained_status"] == "not published"


def test_seeds_of_a_random_initialisation_are_pooled_as_one_row(
    subjects: list[Subject], published: list[Published]
) -> None:
    rows = [each for each in table1(subjects, published) if each["model"] == "pythia-70m"]
    assert [each["forward_dtype"] for each in rows] == ["float32", "float64"]
    for found in rows:
        assert (found["random_seeds"], found["random_values"], found["trained_values"]) == (
            5,
            30,
            0,
        )
        assert (found["random_status"], found["trained_status"], found["trained_median"]) == (
            "below floor",
            "not measured",
            None,
        )
        assert found["revision"] == "+".join(f"seed{seed}" for seed in SEEDS)
        assert found["published_random_median"] == 0.232
    (own,) = [
        each
        for each in table2(subjects, published)
        if each["model"] == "pythia-70m" and each["forward_dtype"] == "float32"
    ]
    assert (own["kind"], own["seeds"], own["published_body_sigma_low"]) == (
        "random initialisation",
        5,
        None,
    )
    grown = [
        each for each in trained_vs_random(subjects, published) if each["model"] == "pythia-70m"
    ]
    assert [each["forward_dtype"] for each in grown] == ["float32", "float64"]
    for found in grown:
        assert (found["random_seeds"], found["trained_max_ratio"], found["trained_status"]) == (
            5,
            None,
            "not published",
        )
        assert found["random_max_ratio"] is not None


def profile_subject(model: str, profile: list[float], post: float, *, random: bool) -> Subject:
    """A checkpoint, or a random initialisation, whose smallest active singular values over X_0,
    X_1, ... are `profile`.
    """
    embedding, *body = profile
    stack = subject([], [], model).stacks[0] | {
        "n": 8192,
        "max_ratio": max(body) / embedding,
        "post_norm_ratio": post / embedding,
    }
    stack |= {"first_block_max_ratio": max(body) / body[0], "body_ratio": max(body) / min(body)}
    stack |= {"first_block_post_norm_ratio": post / body[0]}
    if random:
        return Subject(model, "seed42", "F32", "kjv", random_stacks=[stack | {"seed": 42}])
    return Subject(model, "1", "F32", "kjv", stacks=[stack])


def test_ratios_stand_over_the_embedding_the_first_block_and_the_smallest_block() -> None:
    own = profile_subject("m", [0.5, 4.0, 2.0, 10.0], 6.0, random=False)
    (found,) = trained_vs_random([own], [])
    readings = {
        "max_ratio": 20.0,
        "first_block_max_ratio": 2.5,
        "body_ratio": 5.0,
        "post_norm_ratio": 12.0,
        "first_block_post_norm_ratio": 1.5,
    }
    assert {name: found[f"trained_{name}"] for name in readings} == readings
    assert all(found[f"random_{name}"] is None for name in readings)


@pytest.mark.parametrize(
    ("stated", "status", "readings"),
    [(20.0, "reproduced", ["X_0"]), (2.6, "deviates", ["X_1"]), (9.0, "deviates", [])],
)
def test_a_published_ratio_names_the_reading_that_reproduces_it(
    stated: float, status: str, readings: list[str]
) -> None:
    """It is compared with the reference that the paper states, whatever another one would give."""
    record = Published(
        "trained_vs_random", "M", "m", "random_max_ratio", stated, 0.1 * stated, "statistical"
    )
    (found,) = trained_vs_random(
        [profile_subject("m", [0.5, 4.0, 2.0, 10.0], 6.0, random=True)], [record]
    )
    assert (found["random_status"], found["trained_status"]) == (status, "not published")
    assert found["reproduced_by"] == [f"random_max_ratio: {reading}" for reading in readings]
    assert found["deviations"] == ([] if status == "reproduced" else ["random_max_ratio"])


def test_a_random_initialisation_is_compared_with_the_random_half_of_its_architecture(
    published: list[Published],
) -> None:
    (found,) = trained_vs_random(
        [profile_subject("pythia-160m-init", [0.5, 4.0, 6.0, 10.8], 6.0, random=True)], published
    )
    assert (found["published_random_max_ratio"], found["published_n"]) == (2.69, 65536)
    assert (
        found["published_trained_max_ratio"],
        found["trained_status"],
        found["random_status"],
    ) == (None, "not published", "deviates")
    assert found["reproduced_by"] == ["random_max_ratio: X_1", "random_max_ratio: body"]


def test_an_initialisation_of_no_published_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "published.yaml"
    claim = stated("table1", "width", 8, kind="exact")
    for names in ({"b": "c"}, {"a": "a"}):
        path.write_text(yaml.safe_dump(document(claim) | {"initialised": names}))
        with pytest.raises(InputError, match=r"published.yaml: initialised gives"):
            read_published(path)


def test_twins_of_table2_are_medians_counts_and_unions(study: list[Path]) -> None:
    (path,) = [
        path
        for path in study
        if path.parts[-4:] == ("gpt2-nano", "seed42", "reinitialised", "stacks.parquet")
    ]
    twins = [
        each
        for each in tables.read(path, "reinitialised_stacks")
        if each["forward_dtype"] == "float32"
    ]
    for twin, ratio, behaviour, flag in zip(
        twins, (1.0, 5.0, 2.0, 4.0, None), ["dip", "dip", "up", "up", "up"], "abcab", strict=True
    ):
        twin |= {
            "max_ratio": ratio,
            "behaviour": behaviour,
            "flags": [flag],
            "min_ratio_block": twin["seed"],
        }
    own = {name: value for name, value in twins[0].items() if name != "seed"}
    rows = table2(
        [Subject("gpt2-nano", "seed42", "F32", "kjv", stacks=[own], random_stacks=twins)], []
    )
    twin = row(rows, "gpt2-nano", kind="re-initialised")
    assert twin["max_ratio"] == 3.0
    assert (twin["behaviour"], twin["flags"], twin["min_ratio_block"]) == (
        "up (3/5), dip (2/5)",
        ["a", "b", "c"],
        None,
    )
    (compared,) = trained_vs_random(
        [Subject("gpt2-nano", "seed42", "F32", "kjv", stacks=[own], random_stacks=twins)], []
    )
    assert (
        compared["random_max_ratio"],
        compared["random_max_ratio_seed_low"],
        compared["random_max_ratio_seed_high"],
    ) == (3.0, 1.0, 5.0)


def test_ratios_at_a_fixed_rank_stand_beside_the_published_ones(subjects: list[Subject]) -> None:
    """Equal where the rank stays: no further line. A difference is shown in both tables."""
    same = [each for each in trained_vs_random(subjects, []) if each["model"] == "rxnfp-pretrained"]
    other = [each | {"trained_fixed_rank_max_ratio": 34.0} for each in same]
    lines = [
        [
            text.get_text()
            for text in DRAWINGS["trained_vs_random"](rows).findobj(Text)
            if "r_0" in text.get_text()
        ]
        for rows in (same, other)
    ]
    assert not any("at the rank" in text for text in lines[0])
    assert any("at the rank" in text for text in lines[1])
    (profile,) = [
        each
        for each in table2(subjects, [])
        if each["model"] == "rxnfp-pretrained" and each["kind"] == "trained"
    ]
    drawn = DRAWINGS["table2"](
        [profile | {"behaviour_smallest_active": "depth-decreasing", "fixed_rank": 32}]
    )
    assert any(
        "as published; $X_0$ has rank $r_0=32$" in text.get_text() for text in drawn.findobj(Text)
    )


def test_the_heading_is_the_class_of_the_norm(subjects: list[Subject]) -> None:
    """A LayerNorm without biases, which its parameters do not tell from an RMSNorm."""
    stack = subjects[0].stacks[0] | {"norm_kind": "LayerNorm", "norm_kind_parameters": "RMSNorm"}
    for name, rows in (
        ("table2", table2([replace(subjects[0], stacks=[stack], random_stacks=[])], [])),
        ("trained_vs_random", trained_vs_random([replace(subjects[0], stacks=[stack])], [])),
    ):
        texts = [text.get_text() for text in DRAWINGS[name](rows).findobj(Text)]
        assert any(text.startswith("LayerNorm,") for text in texts)
        assert not any(text.startswith("RMSNorm,") for text in texts)


def test_figure3_has_every_block_of_every_seed(subjects: list[Subject]) -> None:
    rows = [each for each in figure3(subjects) if each["model"] == "rxnfp-pretrained"]
    assert len(rows) == 13 * (1 + len(SEEDS))
    assert {each["relative_depth"] for each in rows} == {block / 12 for block in range(13)}
    assert {each["floor"] for each in rows} == {1e-5}
    assert {each["seed"] for each in rows if each["kind"] == "trained"} == {None}


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("checkpoint.json", "checkpoint.json"),
        ("schur.parquet", "schur.parquet"),
        ("reinitialised/schur.parquet", "reinitialised/schur.parquet"),
    ],
)
def test_a_missing_input_is_named(study: list[Path], missing: str, named: str) -> None:
    inputs = [path for path in study if not path.as_posix().endswith(f"minilm-l6/0.1.0/{missing}")]
    assert len(inputs) == len(study) - 1
    with pytest.raises(InputError, match=re.escape(f"minilm-l6/0.1.0/{named}")):
        read_subjects(inputs, KINDS)


def test_a_checkpoint_without_its_twins_has_its_own_rows_alone(study: list[Path]) -> None:
    """The first table of `make tables` is written before any twin is drawn."""
    alone = [path for path in study if path.parent.name != "reinitialised"]
    builder = TABLES["table2"]
    rows = builder({"without_twins": alone, "published": [PUBLISHED]})
    whole = builder({"measured": study, "published": [PUBLISHED]})
    assert rows == [each for each in whole if each["kind"] in ("trained", RANDOM)]
    assert {each["kind"] for each in whole} == {"trained", RANDOM, "re-initialised"}
    with pytest.raises(InputError, match=r"reinitialised/stacks\.parquet"):
        builder({"measured": alone, "published": [PUBLISHED]})


def test_a_published_claim_with_a_wrong_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump(document(stated("table1", "width", 1, knd="exact"))))
    with pytest.raises(InputError, match=r"published.yaml: groups/0/claims/0: .*'knd'"):
        read_published(path)


def test_published_records_name_columns_that_exist(published: list[Published]) -> None:
    places = [(record.table, record.model, record.column) for record in published]
    initialised = yaml.safe_load(PUBLISHED.read_text())["initialised"]
    assert len(set(places)) == len(places)
    published = [record for record in published if record.model not in initialised]
    places = places[: len(published)]
    for record in published:
        names = tables.schemas[record.table].names
        assert record.column in names
        assert record.column == "width" or f"published_{record.column}" in names
        assert record.kind in ("exact", "statistical", "hardware-bound", "setting")
    values = {place: record.value for place, record in zip(places, published, strict=True)}
    assert values["table1", "pythia-410m", "random_first_quartile"] == -0.05
    assert values["table2", "gemma-4-31b", "body_sigma_low"] == 0.020
    assert values["trained_vs_random", "qwen3.5-4b", "random_post_norm_ratio"] == 0.06
    assert [sum(place[0] == name for place in places) for name in BUILDERS] == [
        5 * 5 + 6 * 3,
        8 * 14,
        5 + 10 + 6,
    ]


# --- drawing ---


def visible_texts(figure: Figure) -> tuple[list[Text], numpy.ndarray]:
    """Texts that are drawn and their boxes (left, bottom, right, top), points."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    drawn = [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()
    ]
    drawn = [text for text in drawn if text.axes is None or text.axes.get_visible()]
    hidden = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if not _on_axis(axis, tick, label)
    }
    drawn = [text for text in drawn if text not in hidden]
    boxes = (
        numpy.array([text.get_window_extent(renderer).extents for text in drawn]) * 72 / figure.dpi
    )
    return drawn, boxes


def _on_axis(axis: object, tick: object, label: Text) -> bool:
    low, high = sorted(axis.get_view_interval())
    return label.get_visible() and low <= tick.get_loc() <= high


def assert_legible(figure: Figure) -> None:
    """Every text lies on the page, none touches another, none is smaller than 7 points; the page is
    as wide as a paper's text.
    """
    texts, boxes = visible_texts(figure)
    width, height = (72 * side for side in figure.get_size_inches())
    assert width == 72 * 7
    assert len(texts) > 5
    assert min(text.get_fontsize() for text in texts) >= 7
    for text, (left, bottom, right, top) in zip(texts, boxes, strict=True):
        assert left >= -0.5, text
        assert bottom >= -0.5, text
        assert right <= width + 0.5, text
        assert top <= height + 0.5, text
    inner = boxes + numpy.array([0.6, 1.0, -0.6, -1.0])
    across = numpy.minimum(inner[:, None, 2], inner[None, :, 2]) - numpy.maximum(
        inner[:, None, 0], inner[None, :, 0]
    )
    along = numpy.minimum(inner[:, None, 3], inner[None, :, 3]) - numpy.maximum(
        inner[:, None, 1], inner[None, :, 1]
    )
    touching = [
        (texts[one].get_text(), texts[two].get_text())
        for one, two in numpy.argwhere((across > 0) & (along > 0))
        if one < two
    ]
    assert not touching


@pytest.mark.parametrize("name", NAMES)
def test_nothing_overlaps_or_leaves_the_page(name: str, drawn: dict[str, Figure]) -> None:
    with style.look():
        assert_legible(drawn[name])


@pytest.mark.parametrize("count", [1, 14])
def test_nothing_overlaps_with_one_model_or_many_long_names(
    count: int, published: list[Published], tmp_path: Path
) -> None:
    chosen = read_subjects(write_results(tmp_path, many(count)), KINDS)
    with style.look():
        for name in NAMES:
            assert_legible(DRAWINGS[name](rows_of(name, chosen, published)))


@pytest.mark.parametrize("name", NAMES)
def test_same_inputs_same_bytes_whatever_the_users_matplotlibrc(
    name: str, study: list[Path], tmp_path: Path
) -> None:
    inputs = [path for path in study if "gpt2-nano" in path.parts or "smollm2-135m" in path.parts]
    contents = []
    for run, settings in (("first", {}), ("second", USERS)):
        parquet, csv = tmp_path / run / f"{name}.parquet", tmp_path / run / f"{name}.csv"
        outputs = [tmp_path / run / f"{name}.pdf", tmp_path / run / f"{name}.svg"]
        write_table(name, {"measured": inputs, "published": [PUBLISHED]}, parquet, csv)
        with matplotlib.rc_context(settings):
            draw(name, parquet, outputs)
        contents.append([path.read_bytes() for path in (parquet, csv, *outputs)])
        assert [path.name for path in (tmp_path / run).iterdir() if path.name.startswith(".")] == []
    assert contents[0] == contents[1]
    pdf = contents[0][2]
    assert b"/Type3" not in pdf
    assert b"/Subtype /Image" not in pdf


def recovered(folder: Path, checkpoints: int) -> dict[str, list[dict]]:
    """The tables of exact recovery from made-up files, the last checkpoint without a LayerNorm and
    not assembled.
    """
    populations = {
        "behind a LayerNorm": "gauge line and lattice",
        "no norm": "least squares",
        "embedding": "none",
    }
    schemas = recovery_schemas.tables.schemas
    inputs: dict[str, list[Path]] = {}
    for place in range(checkpoints):
        metadata = {
            "model": f"organisation-a-rather-long-model-name_with.many-parts-{place}",
            "revision": "1.0",
        }
        norms = place == 0 or place < checkpoints - 1
        counts = {
            "values": 10**7,
            "determined": 10**7,
            "recovered": 10**7 - 1,
            "flagged": 1,
            "misses": 0,
        }
        files = {
            "map": [
                filled(
                    schemas["recovery_map"],
                    tensor=f"{place}.{number}",
                    population=population,
                    argument=argument,
                )
                | {
                    **counts,
                    "min_margin": 3.4 + place,
                    "score": 1e-4 if norms and number == 0 else None,
                }
                for number, (population, argument) in enumerate(populations.items())
            ],
            "null": [
                {
                    "low": number / 100,
                    "high": (number + 1) / 100,
                    "count": 100 + (-1) ** number if norms else 0,
                }
                | {"residuals": 5000 if norms else 0, "left_out": 7}
                | dict.fromkeys(("statistic", "p"), 1.2e-4 if norms else None)
                for number in range(50)
            ],
            "parts": [filled(schemas["recovery_parts"], part="decoder-1")],
            "minimum_norm": [
                filled(
                    schemas["recovery_minimum_norm"],
                    values=1000,
                    matches=place,
                    place_matches=1000,
                    distance=1.3e-15 * (1 + place),
                    place_distance=1.1e-15,
                )
            ],
            "calls": [
                filled(
                    schemas["recovery_calls"],
                    low=float(low),
                    high=low + 1.0,
                    values=100 if norms else 0,
                    wrong=max(0, 30 - 10 * low) if norms else 0,
                    expected=30 * 10.0**-low,
                )
                for low in range(8)
            ],
            "certificates": [
                filled(schemas["recovery_certificates"], candidates=9, survivors=1 + place)
            ],
            "falsifier": [
                filled(schemas["recovery_falsifier"], values=10, claimed=0, matches=place)
            ],
            "stragglers": [filled(schemas["recovery_stragglers"], chunks=place)],
            "attack": [
                filled(schemas["recovery_attack"], right=None),
                filled(schemas["recovery_attack"], right=True),
            ],
            "assembly": [
                {
                    "file": "a",
                    "sha256": "b",
                    "assembled_sha256": "b" if norms else None,
                    "reason": None,
                }
            ],
            "margins": [
                filled(schemas["recovery_margins"], method=method, rows=rows, margin=rows**0.5 / 9)
                for rows in (1000, 2000)
                for method in ("joint fit", "held fit")
            ],
            "hardest": [
                filled(schemas["recovery_hardest"], gain=gain, weight=0.1, margin=1e3 * abs(gain))
                for gain in (0.3, -2.6e-4, 1e-33)
            ],
        }
        if norms:
            files["routes"] = [filled(schemas["recovery_routes"], different=2)]
        for kind, content in files.items():
            path = folder / str(place) / f"{kind}.parquet"
            recovery_schemas.tables.write(path, f"recovery_{kind}", content, metadata)
            inputs.setdefault(kind, []).append(path)
    names = (*RECOVERY, "exact_recovery_parts")
    outputs = {name: folder / f"{name}.parquet" for name in names} | {
        f"{name}_csv": folder / f"{name}.csv" for name in names
    }
    write_recovery(inputs, outputs)
    return {
        name: recovery_schemas.tables.read(folder / f"{name}.parquet", name) for name in RECOVERY
    }


def test_the_row_of_a_checkpoint_sums_its_populations_and_carries_its_checks(
    tmp_path: Path,
) -> None:
    rows = [row for row in recovered(tmp_path, 3)["exact_recovery"] if row["population"] == "all"]
    assert [row["values"] for row in rows] == [3 * 10**7] * 3
    assert [
        (row["most_survivors"], row["falsifier_matches"], row["chunks"], row["attack_reached"])
        for row in rows
    ] == [
        (1, 0, 0, 1),
        (2, 1, 1, 1),
        (3, 2, 2, 1),
    ]
    assert [(row["sha256_equal"], row["route_differences"]) for row in rows] == [
        (True, 2),
        (True, 2),
        (None, None),
    ]


@pytest.mark.parametrize("checkpoints", [1, 7])
@pytest.mark.parametrize("name", [*RECOVERY, "exact_recovery_checks"])
def test_exact_recovery_is_legible_and_always_the_same(
    name: str, checkpoints: int, tmp_path: Path
) -> None:
    table = RECOVERY_DRAWINGS[name].table
    rows = recovered(tmp_path, checkpoints)[table]
    with style.look():
        assert_legible(RECOVERY_DRAWINGS[name](rows))
    outputs = [tmp_path / "first.pdf", tmp_path / "second.pdf"]
    for output, settings in zip(outputs, ({}, USERS), strict=True):
        with matplotlib.rc_context(settings):
            draw(name, tmp_path / f"{table}.parquet", [output])
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_the_recovered_share_is_100_only_when_nothing_is_left(tmp_path: Path) -> None:
    rows = recovered(tmp_path, 1)["exact_recovery_map"]
    text = text_of(RECOVERY_DRAWINGS["exact_recovery_map"](rows))
    assert "99.99%" in text
    assert "100%" not in text
    assert "30,000,000" in text
    whole = [each | {"recovered": each["values"], "flagged": 0} for each in rows]
    assert "100%" in text_of(RECOVERY_DRAWINGS["exact_recovery_map"](whole))


def test_scores_are_the_worst_of_their_own_checkpoint(tmp_path: Path) -> None:
    scores = {
        each["model"][-1]: each["score"] for each in recovered(tmp_path, 3)["exact_recovery_null"]
    }
    assert scores == {"0": 1e-4, "1": 1e-4, "2": None}


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    tables.write(tmp_path / "table1.parquet", "table1", [], {})
    with pytest.raises(InputError, match=r"table1.parquet: no rows to draw"):
        draw("table1", tmp_path / "table1.parquet", [tmp_path / "table1.pdf"])
    assert not (tmp_path / "table1.pdf").exists()


def text_of(figure: Figure) -> str:
    """All texts of a figure in drawing order, mathematics as written."""
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_marks_and_words_of_the_tables(drawn: dict[str, Figure]) -> None:
    first = text_of(drawn["table1"])
    assert "weights stored as Q4_1, dequantised" in first
    assert "weights stored as F16 (half precision)" in first
    assert "trained here by this workflow" in first
    for name in ("table1", "table2", "trained_vs_random", "figure3", "figure6"):
        assert "hears seeded Gaussian noise, not speech" in text_of(drawn[name]), name
    assert "below floor reads 0.0199 [0.014, 0.023]" in first
    assert "0.232 [0.08, 0.30]" in first
    second = text_of(drawn["table2"])
    for words in (
        "not applicable (post-norm)",
        "below floor",
        "re-initialised, 5 seeds",
        "n over d below 10",
        "0.0102 – 0.154 *",
        "0.00988 – 0.196",
    ):
        assert words in second
    assert "the activations read as LayerNorm, the parameters as RMSNorm" in second.replace(
        "\n", " "
    )
    third = text_of(drawn["trained_vs_random"])
    assert "differs from the published value" in third
    assert "19.69" in third


def test_values_below_floor_are_hollow_and_values_above_are_not(drawn: dict[str, Figure]) -> None:
    by_title = {
        next(text.get_text() for text in axes.texts if text.get_weight() == "bold"): axes
        for axes in drawn["figure6"].axes
    }

    def faces(title: str, color: str) -> set[str]:
        lines = [
            line
            for line in by_title[title].lines
            if line.get_marker() != "None"
            and len(line.get_xdata())
            and line.get_markeredgecolor() == color
        ]
        return {line.get_markerfacecolor() for line in lines}

    assert faces("minilm-l6", style.RANDOM) == {"white"}
    assert faces("minilm-l6", style.TRAINED) == {style.TRAINED}
    assert faces("gemma-3-test", style.RANDOM) == {style.RANDOM}


def test_floor_and_missing_reference_are_shown_in_figure3(subjects: list[Subject]) -> None:
    rows = [each for each in figure3(subjects) if each["model"] in ("minilm-l6", "gpt2-nano")]
    for each in rows:
        if each["model"] == "minilm-l6":
            each |= {"sigma_active_min": None, "ratio_to_embedding": None}
        else:
            each |= {"floor": 0.65}
    figure = DRAWINGS["figure3"](rows)
    assert "no ratio" in text_of(figure)
    (panel,) = [
        axes for axes in figure.axes if any("gpt2" in text.get_text() for text in axes.texts)
    ]
    assert any(patch.get_hatch() for patch in panel.collections)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 3, "—"),
        (0.0, 3, "0"),
        (-0.0, 3, "0"),
        (0.020, 2, "0.020"),
        (50.14, 3, "50.1"),
        (-1.5, 2, "−1.5"),
        (131072.0, 3, r"$1.31\times10^{5}$"),
        (8e-14, 2, r"$8.0\times10^{-14}$"),
        (9.999, 2, "10"),
    ],
)
def test_numbers_have_significant_digits(value: float | None, digits: int, text: str) -> None:
    assert number(value, digits) == text


def test_wrapping_keeps_every_letter_within_the_limit() -> None:
    with style.look():
        ruler = Ruler()
        name = "organisation/an-exceedingly-long-name_without.spacesbutlonglonglongwords"
        text = name + r"$^{\mathit{a,b}}$ and more"
        lines = ruler.wrap(text, 60, 8)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert all(ruler.width(line, 8) <= 60 for line in lines)
        assert all(line for line in lines)
        assert all(len(one) + len(two) > 8 for one, two in pairwise(lines))


def test_lines_are_filled_up_to_the_limit_and_no_further() -> None:
    caption = (
        r"behaviour: of $\sigma_{(r_0)}(X_\ell)/\sigma_{(r_0)}(X_0)$ along the depth; $n$ = "
        r"8,192 tokens, RMSNorm, pre-norm, LoRA adapter"
    )
    with style.look():
        ruler = Ruler()
        for text in [
            caption,
            *caption.split("; "),
            "below floor",
            "LoRA adapter",
            r"$1.2\times10^5$ – $3.4\times10^6$",
            "",
            "a  b",
        ]:
            assert ruler.wrap(text, ruler.width(text, 8) + 0.01, 8) == [text]
        for limit in range(100, 500, 23):
            lines = ruler.wrap(caption, limit, 8)
            assert " ".join(lines) == caption
            assert all(ruler.width(line, 8) <= limit for line in lines)
            for line, following in pairwise(lines):
                assert ruler.width(f"{line} {following.split(' ')[0]}", 8) > limit


@pytest.mark.skipif(
    shutil.which("pdftotext") is None,
    reason="poppler's pdftotext is not installed: the text layer of the PDFs goes unchecked",
)
def test_text_can_be_copied_from_the_pdf(drawn: dict[str, Figure], tmp_path: Path) -> None:
    for name in NAMES:
        style.save(drawn[name], [tmp_path / f"{name}.pdf"])
        text = subprocess.run(
            ["pdftotext", "-layout", tmp_path / f"{name}.pdf", "-"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for words in (
            "smollm2-135m",
            "whisper-tiny-en",
            "RMSNorm, pre-norm",
            "LayerNorm, post-norm",
            "8,192",
            "dequantised",
        ):
            assert words in text, name
