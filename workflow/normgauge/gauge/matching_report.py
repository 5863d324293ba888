"""What a whole-model matching says in words: per kind of space what is certain, uncertain, not
determined, and what was not looked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normgauge.gauge.head_matching import HeadMatching
from normgauge.gauge.matching import Matching
from normgauge.gauge.model_matching import ModelMatching, Part, SpaceMatching
from normgauge.gauge.weight_maps import AttentionMaps

LISTED = 20  # numbers that a line names
NOUNS = {
    Part.STREAM: "coordinates",
    Part.UNITS: "units",
    Part.HEADS: "heads",
    Part.VALUES: "maps",
    Part.QUERIES: "maps",
    Part.OTHER: "coordinates",
}
NOT_LOOKED_FOR = (
    "rotations of a stream, gains folded into maps, shifts along LayerNorm's null "
    "line, constants of keys"
)


def report(matching: ModelMatching) -> list[str]:
    """Lines to print: first what is doubtful, space by space, then a line for each part of the
    model.
    """
    return [*doubts(matching), *parts(matching)]


def doubts(matching: ModelMatching) -> list[str]:
    """What is doubtful, space by space."""
    return [line for each in matching.spaces for line in _doubts(each)]


def parts(matching: ModelMatching) -> list[str]:
    """A line for each part of the model, how far the weights are apart, and what was not looked
    for.
    """
    lines = []
    for part in Part:
        if spaces := matching.of(part):
            lines.append(
                f"{part}: {_counted(spaces, NOUNS[part])} ({'; '.join(_evidence(spaces))})"
            )
    change = matching.change
    if change.after:
        left = (
            f"{change.after:.2g} of their norm apart under this gauge, most in "
            f"{change.furthest} ({change.distance:.2g})"
        )
    else:
        left = "equal under this gauge"
    return [
        *lines,
        f"weights: {left}; {change.before:.2g} apart without it",
        f"not looked for: {NOT_LOOKED_FOR}",
    ]


def record(matching: ModelMatching) -> dict[str, dict]:
    """What a gauge file says of a matching: by space or attention layer the doubtful numbers of
    each part, and the smallest margin.
    """
    doubtful: dict[str, dict[str, list[int]]] = {}
    margins = {}
    for each in matching.spaces:
        if not each.certain.all():
            doubtful.setdefault(each.space, {})[str(each.part)] = np.flatnonzero(
                ~each.certain
            ).tolist()
        if not isinstance(each.found, AttentionMaps) and np.isfinite(each.found.margins).any():
            margins[each.space] = _smallest_margin(each.found)
    return {"uncertain": doubtful, "margins": margins}


def _counted(spaces: Sequence[SpaceMatching], noun: str) -> str:
    size, certain = (
        sum(each.size for each in spaces),
        sum(int(each.certain.sum()) for each in spaces),
    )
    where = f" in {len(spaces)} places" if len(spaces) > 1 else ""
    if certain == size:
        return f"all {size:,} {noun}{where} certain"
    uncertain = sum(int(each.uncertain.sum()) for each in spaces)
    missing = sum(int(each.undetermined.sum()) for each in spaces)
    return (
        f"{certain:,} of {size:,} {noun}{where} certain, {uncertain:,} uncertain, {missing:,} "
        "not determined"
    )


def _evidence(spaces: Sequence[SpaceMatching]) -> list[str]:
    maps = [each.found for each in spaces if isinstance(each.found, AttentionMaps)]
    if maps:
        fits = [
            fit
            for each in maps
            for fit in (each.values if spaces[0].part == Part.VALUES else each.queries)
        ]
        conditions = [fit.condition for fit in fits if fit.determined]
        left = f"from weights, {max(fit.distance for fit in fits):.2g} of their norm left at most"
        return [left, f"condition at most {max(conditions):.2g}"] if conditions else [left]
    said = [f"smallest margin {min(_smallest_margin(each.found) for each in spaces):.3g}"]  # type: ignore[arg-type]
    matchings = [each.found for each in spaces if isinstance(each.found, Matching)]
    if matchings:
        proven = sum(each.certified for each in matchings)
        said.append(
            "certified" if proven == len(matchings) else f"{proven} of {len(matchings)} certified"
        )
        if weighed := sum(int(each.by_weights.sum()) for each in matchings):
            said.append(f"{weighed:,} decided by weights")
        varying = [each.effective[each.effective > 0] for each in matchings]
        effective = float(np.median(np.concatenate(varying))) if any(map(len, varying)) else 0.0
        said.append(
            f"{min(each.samples for each in matchings):,} samples at a site, in effect "
            f"{effective:,.0f}"
        )
    heads = [each.found for each in spaces if isinstance(each.found, HeadMatching)]
    if heads:
        said.append(f"{min(each.samples for each in heads):,} samples")
    return said


def _smallest_margin(found: Matching | HeadMatching) -> float:
    """Of the matches that activations decide; of all where weights decide every one."""
    weighed = found.by_weights if isinstance(found, Matching) else np.zeros_like(found.silent)
    return float(found.margins[~weighed if not weighed.all() else weighed].min())


def _doubts(each: SpaceMatching) -> list[str]:
    lines = []
    what = (
        each.space
        if each.part in (Part.STREAM, Part.UNITS, Part.OTHER)
        else f"{each.space}, {each.part}"
    )
    if isinstance(each.found, Matching) and not each.found.sign_certain:
        lines.append(
            f"{what}: the sign that is common to all coordinates is not certain, and so no "
            "coordinate is"
        )
    elif each.uncertain.any():
        numbers = _listed(each.uncertain)
        lines.append(
            f"{what}: uncertain are {numbers}; the gauge holds their likeliest match, which more "
            "probes may change"
        )
    if each.undetermined.any():
        lines.append(
            f"{what}: not determined are {_listed(each.undetermined)}, which leave no trace in "
            "activations or weights"
        )
    return lines


def _listed(mask: np.ndarray) -> str:
    numbers = np.flatnonzero(mask).tolist()
    return ", ".join(map(str, numbers[:LISTED])) + (", ..." if len(numbers) > LISTED else "")
