"""The tables of the dead directions, each with the measurements that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normgauge.published.cells import Published, read_published
from normgauge.render.dead_directions.fingerprint_rows import table2
from normgauge.render.dead_directions.growth_rows import trained_vs_random
from normgauge.render.dead_directions.profile_rows import figure3, figure6
from normgauge.render.dead_directions.schur_ratio_rows import table1
from normgauge.render.rows import Row, Rows
from normgauge.render.subjects import Subject, read_subjects


@dataclass(frozen=True)
class OfSubjects:
    """A table from the result folders of checkpoints (`measured`; `without_twins`, those whose
    re-initialised twins are not there) and the file of claims (`published`).

    kinds: the measurements that it needs besides `stacks`; other files are ignored.
    """

    kinds: tuple[str, ...]
    build: Callable[[Sequence[Subject], Sequence[Published]], list[Row]]

    def __call__(self, inputs: Mapping[str, Sequence[Path]]) -> Rows:
        (published,) = inputs["published"]
        subjects = [
            subject
            for name, twins in (("measured", True), ("without_twins", False))
            for subject in read_subjects(inputs.get(name, ()), self.kinds, twins)
        ]
        return self.build(subjects, read_published(published))


BUILDERS = {
    "table1": OfSubjects(("schur",), table1),
    "table2": OfSubjects((), table2),
    "trained_vs_random": OfSubjects((), trained_vs_random),
    "figure3": OfSubjects(("fingerprint",), lambda subjects, _: figure3(subjects)),
    "figure6": OfSubjects(("schur",), lambda subjects, _: figure6(subjects)),
}
