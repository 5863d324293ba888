"""Second moments of streamed activations: accumulate, merge, decompose, store."""

from normgauge.moments.accumulators import METHODS, Accumulator, Workspace
from normgauge.moments.algebra import Moments, merge, merge_all
from normgauge.moments.grouped import GroupedAccumulator, leave_one_out
from normgauge.moments.packed import PackedMoments
from normgauge.moments.storage import read_moments, write_moments

__all__ = [
    "METHODS",
    "Accumulator",
    "GroupedAccumulator",
    "Moments",
    "PackedMoments",
    "Workspace",
    "leave_one_out",
    "merge",
    "merge_all",
    "read_moments",
    "write_moments",
]
