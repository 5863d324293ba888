"""The claimed count and the corrected one, per architecture, from the config alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, SpaceKind
from normgauge.errors import InputError
from normgauge.redundancy.family import dimensions
from normgauge.redundancy.jacobian import count_parameters
from normgauge.redundancy.symmetries import symmetries

CLAIM_KEYS = {"published_share", "stated_parameters"}
STATED = "reproduced with the stated parameter count, deviates with the true one"


def claimed(anatomy: Anatomy) -> int:
    """2 n_t n_h d_h^2 + (d - 1)(d - 2) / 2: the claimed number of redundant directions.

    n_t n_h counts query heads of every attention layer (of both stacks, and of cross-attention), d
    is the width of the primary stream.
    """
    width = anatomy.primary_stack.width
    queries = [space for space in anatomy.spaces if space.kind == SpaceKind.QUERY]
    return (
        sum(2 * space.heads * (space.size // space.heads) ** 2 for space in queries)
        + (width - 1) * (width - 2) // 2
    )


def check_claims(claims: Any, where: str) -> dict[str, dict[str, float]]:
    """The published claims by architecture. Raises InputError for an unknown key, or a value that
    is no number.
    """
    if not isinstance(claims, Mapping):
        raise InputError(f"{where}: expected architectures with published_share; mend it")
    for name, entry in claims.items():
        numbers = isinstance(entry, Mapping) and all(
            type(value) in (int, float) for value in entry.values()
        )
        if not numbers or not {"published_share"} <= set(entry) <= CLAIM_KEYS:
            raise InputError(
                f"{where}: {name}: expected numbers under {' and '.join(sorted(CLAIM_KEYS))}; mend "
                "it"
            )
    return {name: dict(entry) for name, entry in claims.items()}


def count_row(
    name: str,
    source: str,
    config: Any,
    claim: Mapping[str, float] | None,
    measured: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """A row of schema `redundancy_counts`. `measured` is the architecture's row of
    `redundancy_jacobian`, where there is one.

    `status` is that of `status_of`. Raises InputError as `symmetries`.
    """
    anatomy = describe(config)
    parameters = count_parameters(anatomy)
    total, corrected = claimed(anatomy), sum(dimensions(symmetries(anatomy)).values())
    queries = [space for space in anatomy.spaces if space.kind == SpaceKind.QUERY]
    published = claim["published_share"] if claim else None
    stated = int(claim["stated_parameters"]) if claim and "stated_parameters" in claim else None
    return {
        "architecture": name,
        "source": source,
        "family": anatomy.family,
        "norm_kind": str(anatomy.norm_kind),
        "placement": str(anatomy.placement),
        "positions": str(anatomy.positions),
        "tied": anatomy.tied,
        "width": anatomy.primary_stack.width,
        "head_size": queries[-1].size // queries[-1].heads,
        "heads": queries[-1].heads,
        "attention_layers": len(queries),
        "parameters": parameters,
        "claimed": total,
        "claimed_share": total / parameters,
        "published_share": published,
        "stated_parameters": stated,
        "claimed_share_stated": total / stated if stated else None,
        "status": status_of(published, total / parameters, total / stated if stated else None),
        "corrected": corrected,
        "corrected_share": corrected / parameters,
        "jacobian_nullity": measured["nullity"] if measured else None,
        "unused": measured["unused"] if measured else None,
        "agrees": measured["agrees"] if measured else None,
    }


def status_of(published: float | None, share: float, share_stated: float | None) -> str:
    """Whether a published share, given to three decimals, is ours when rounded: of the model's own
    parameters, else of the number of parameters that was stated for it.
    """
    if published is None:
        return "not published"
    if round(share, 3) == published:
        return "reproduced"
    if share_stated is not None and round(share_stated, 3) == published:
        return STATED
    return "deviates"


def symmetry_rows(name: str, config: Any) -> list[dict[str, Any]]:
    """Rows of schema `redundancy_symmetries`: the corrected count by family."""
    anatomy = describe(config)
    found = symmetries(anatomy)
    parameters = count_parameters(anatomy)
    return [
        {
            "architecture": name,
            "symmetry": str(kind),
            "places": sum(each.kind == kind for each in found),
            "dimension": dimension,
            "share": dimension / parameters,
        }
        for kind, dimension in dimensions(found).items()
    ]
