"""What a check says in the tables: passed, failed, or that it had no power to tell.

A law must hold: what deviates must stay within a tolerance. A control must break it: a change
outside the law has to show, or the law's own check could not have seen a fault. Before anything is
measured a control predicts, in the units of the tolerance, how large its effect is.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

POWER = 100  # tolerances that the predicted effect of a control must reach


class Verdict(StrEnum):
    """The words of a table's verdict columns."""

    PASSED = "passed"
    FAILED = "failed"
    NO_POWER = "no power"


def control_verdict(predicted: float, shown: bool, tolerance: float) -> Verdict:
    """Of a control that predicts an effect of `predicted`, and whether it showed.

    Below `POWER` tolerances (or not a number) it has no power, whatever was measured.
    """
    if not predicted >= POWER * tolerance:
        return Verdict.NO_POWER
    return Verdict.PASSED if shown else Verdict.FAILED


def law_verdict(holds: bool, controls: Iterable[Verdict]) -> Verdict:
    """Of a law with its controls: it fails by itself, and passes only beside a control that has
    power.
    """
    if not holds:
        return Verdict.FAILED
    return (
        Verdict.NO_POWER
        if all(control == Verdict.NO_POWER for control in controls)
        else Verdict.PASSED
    )


def summarised(verdicts: Iterable[str]) -> Verdict:
    """Of repetitions, such as seeds: failed where one failed, passed where every one passed, else
    no power.
    """
    found = set(verdicts)
    if Verdict.FAILED in found:
        return Verdict.FAILED
    return Verdict.PASSED if found == {Verdict.PASSED} else Verdict.NO_POWER
