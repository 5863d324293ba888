"""Whether the kernel statement holds at the outputs of a model's norms, from the rows of a
fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normgauge.anatomy.structure import Anatomy, NormKind
from normgauge.fingerprint.protocol import FLOOR_MARGIN
from normgauge.fingerprint.study import Rows

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
TOO_COARSE = {"protocol:forward-floor", "protocol:accumulator-floor"}
NOT_CONSTANT = {"protocol:wrong-hook", "protocol:raw-gram"}


@dataclass(frozen=True)
class KernelCheck:
    """`verdicts`: LayerNorm -> holds, fails or undecided (rounding hides it). `largest`: of the
    centred activations' length along 1/gamma over their largest singular value, at the outputs of
    which the covariance was measured, and not below rounding; None where there was none.
    """

    verdicts: Mapping[str, str]
    largest: float | None

    def count(self, verdict: str) -> int:
        return sum(each == verdict for each in self.verdicts.values())


def kernel_check(anatomy: Anatomy, fingerprint: Rows, schur: Rows) -> KernelCheck:
    """The verdict of each LayerNorm whose output was measured: along 1/gamma it must not vary
    (arXiv 2606.19491, A.5).

    At an input of maps that it feeds the same is read from the second moment, which there is (beta
    . v)^2. One output that varies is enough to fail; one that shows the statement above rounding is
    enough to hold.
    """
    found: dict[str, list[tuple[str, float | None]]] = {}
    for row in (*fingerprint, *schur):
        if row["norm"] and anatomy.norm(row["norm"]).kind == NormKind.LAYER_NORM:
            found.setdefault(row["norm"], []).append(
                _from_second_moment(row) if "quadratic_form" in row else _from_covariance(row)
            )
    verdicts = {}
    for name, each in found.items():
        seen = [verdict for verdict, _ in each]
        verdicts[name] = next((verdict for verdict in (FAILS, HOLDS) if verdict in seen), UNDECIDED)
    lengths = [
        length
        for each in found.values()
        for verdict, length in each
        if verdict == HOLDS and length is not None
    ]
    return KernelCheck(verdicts, max(lengths, default=None))


def _from_covariance(row: Mapping[str, Any]) -> tuple[str, float]:
    flags = set(row["flags"])
    verdict = FAILS if flags & NOT_CONSTANT else UNDECIDED if flags & TOO_COARSE else HOLDS
    return verdict, max(
        row["relative_gamma_inv"],
        row["forward_floor"] / row["sigma_max"],
        row["accumulator_floor"] / row["sigma_max"],
    )


def _from_second_moment(row: Mapping[str, Any]) -> tuple[str, None]:
    if "protocol:wrong-hook" in row["flags"]:
        return FAILS, None
    expected, floor = row["predicted_quadratic_form"], row["floor"]
    allowed = FLOOR_MARGIN * (2 * (expected * floor) ** 0.5 + floor)
    return UNDECIDED if allowed >= row["lambda_max"] / row["d"] else HOLDS, None
