"""Tables and figures of the redundancy study from made-up rows: legible, always the same, and
honest about what deviates.
"""

from __future__ import annotations

import matplotlib
import pytest

from matplotlib_settings import USERS
from normgauge.render import style
from normgauge.render.drawing import draw
from normgauge.render.redundancy.drawings import DRAWINGS
from normgauge.schemas.redundancy import tables
from result_samples import filled
from unit.test_render import assert_legible, text_of

NAMES = tuple(DRAWINGS)


def rows_of(name: str) -> list[dict]:
    schema = tables.schemas[name]
    if name == "redundancy_counts":
        shared = {
            "norm_kind": "LayerNorm",
            "parameters": 65_285_660_672,
            "claimed": 201_314_305,
            "claimed_share": 0.0118,
            "corrected": 121_171_968,
        }
        return [
            filled(
                schema,
                architecture="a-rather-long-name_of.an-architecture",
                source="shape",
                published_share=0.013,
                status="reproduced with the stated parameter count, deviates with the true one",
                **shared,
            )
            | {"stated_parameters": 117_000_000, "claimed_share_stated": 0.01259},
            filled(
                schema,
                architecture="reproduced",
                source="shape",
                published_share=0.012,
                status="reproduced",
                **shared,
            ),
            filled(
                schema,
                architecture="model@1.0",
                source="checkpoint",
                status="not published",
                tied=True,
                **shared,
            ),
            filled(
                schema,
                architecture="sound",
                source="small model",
                jacobian_nullity=340,
                unused=2,
                agrees=True,
                **shared,
            ),
            filled(
                schema,
                architecture="doubtful",
                source="small model",
                jacobian_nullity=341,
                unused=0,
                agrees=False,
                **shared,
            ),
        ]
    if name == "redundancy_symmetries":
        families = [f"family of symmetries number {number}" for number in range(14)]
        return [
            filled(
                schema,
                architecture=architecture,
                symmetry=family,
                dimension=number + 1,
                share=(number + 1) / 1000,
            )
            for architecture in ("gpt2", "a-rather-long-name_of.an-architecture", "llama")
            for number, family in enumerate(families)
        ]
    if name == "redundancy_jacobian":
        shared = {"nullity": 340, "explained": 340, "smallest_nonzero": 1e-5, "floor": 3e-13}
        names = ("tiny-gpt2", "a-rather-long-name_of.an-architecture")
        return [
            filled(schema, architecture=each, largest_zero=zero, **shared)
            for each, zero in zip(names, (1e-16, 0.0), strict=True)
        ]
    if name == "redundancy_falsifier":
        return [
            filled(
                schema,
                test="output of one block",
                architecture="pre-norm",
                norm_kind="LayerNorm",
                gain=gain,
                value_rule="inverse of g",
            )
            | {
                "max_abs_difference": difference,
                "relative_difference": difference,
                "holds": difference < 1e-12,
            }
            for gain, difference in (("random", 3.7), ("one", 9e-15))
        ]
    return [
        filled(
            schema,
            model=f"model-{number}",
            revision="1.0",
            symmetry="a symmetry",
            dimension=1000,
            symmetric=symmetric,
            verdict=verdict,
        )
        for number, (symmetric, verdict) in enumerate(
            [(True, "passed"), (True, "failed"), (False, "passed"), (False, "no power")]
        )
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_legible_and_always_the_same(name, tmp_path):
    with style.look():
        assert_legible(DRAWINGS[name](rows_of(name)))
    tables.write(tmp_path / "table.parquet", name, rows_of(name), {})
    outputs = [tmp_path / "first.pdf", tmp_path / "second.pdf"]
    for output, settings in zip(outputs, ({}, USERS), strict=True):
        with matplotlib.rc_context(settings):
            draw(name, tmp_path / "table.parquet", [output])
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_what_deviates_or_is_not_explained_says_so():
    text = text_of(DRAWINGS["redundancy_counts"](rows_of("redundancy_counts")))
    assert text.count("(deviates)") == 1
    assert "reproduced with the stated parameter count, deviates with the true one" in " ".join(
        text.split()
    )
    assert text.count("(not explained)") == 1
    assert "sound (2)" in text
    assert "1.26%" in text


def test_the_bars_of_an_architecture_make_up_its_whole_count():
    figure = DRAWINGS["redundancy_symmetries"](rows_of("redundancy_symmetries"))
    ends = {}
    for bar in figure.axes[0].patches:
        ends[round(bar.get_y(), 3)] = max(
            ends.get(round(bar.get_y(), 3), 0.0), bar.get_x() + bar.get_width()
        )
    assert list(ends.values()) == pytest.approx([1.0, 1.0, 1.0])
