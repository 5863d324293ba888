"""What a check says, line by line."""

from __future__ import annotations

from collections.abc import Sequence

from normgauge.gauge.check import Check, Verdict
from normgauge.gauge.rounding import SINGLE_ROUNDING
from normgauge.gauge.stored import StoredError

BEHIND = (
    "the residual streams agree: the difference lies behind them, or hidden states are "
    "outputs and need the --gauge between"
)
UNSEEN = (
    "the outputs do not show it: it is within their rounding, no probe reads it, or another "
    "gauge leads there"
)


def said(found: Check) -> list[str]:
    """The verdict on the outputs, and where the models first differ."""
    line = f"{found.verdict}: outputs differ by {found.found.outputs:.2g} of the largest, "
    if found.verdict == Verdict.SAME:
        return [f"{line}float64 arithmetic explains {found.arithmetic.outputs:.2g}"]
    if found.verdict == Verdict.ROUNDED:
        rounding = f"(one rounding: {SINGLE_ROUNDING:.2f})"
        unseen = (
            f"a change that moves the outputs by less than {found.rounding.outputs:.2g} does "
            "not show"
        )
        return [
            f"{line}as {found.ulp:.2f} ulp of the stored weights does {rounding}",
            f"{unseen}; --gauge compares the stored values",
        ]
    explained = found.arithmetic.outputs + found.rounding.outputs
    lines = [f"{line}arithmetic and the rounding of stored weights explain {explained:.2g}"]
    if where := found.first_difference():
        lines.append(f"first difference at {where}")
    for name, error in list(found.changed.items())[:1]:
        lines.append(f"first changed in {name}: single values, by {error:.3g} ulp")
    if not where and not found.changed:
        lines.append(BEHIND)
    return lines


def said_of_stored(errors: Sequence[StoredError], outputs: Verdict) -> list[str]:
    """The verdict on the stored values of a copy by a known gauge, beside that on the outputs."""
    largest = max(errors, key=lambda error: error.largest)
    if not largest.largest:
        return ["the gauge's copy: every stored value is the gauge's own"]
    first = next((error for error in errors if error.beyond), None)
    if first is None:
        errs = f"stored values err by {largest.largest:.2f} ulp at most"
        return [f"the gauge's copy up to rounding: {errs} ({largest.tensor})"]
    tensors = sum(error.beyond > 0 for error in errors)
    values = f"{first.beyond} values err by up to {first.largest:.3g} ulp"
    line = f"not the gauge's copy, first in {first.tensor}: {values} ({tensors} such tensors)"
    return [line] if outputs == Verdict.DIFFERENT else [line, UNSEEN]
