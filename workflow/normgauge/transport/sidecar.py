"""gauge.json: which model an artifact belongs to, and the gauge that brought it there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.transport.outputs import new_output

GAINS = ("native", "absorbed")


@dataclass(frozen=True)
class Sidecar:
    """`base_sha256`: weights_sha256 of the model that the artifact now fits, `origin_sha256` of the
    one that it came from.

    `gains`: native, or absorbed into the maps that read them. `groups`: by space, what moved it.
    `margins`: by space, the smallest margin of the recovery, None for a recorded gauge.
    """

    base_sha256: str
    origin_sha256: str
    gains: str
    groups: Mapping[str, str]
    margins: Mapping[str, float | None]
    centred: bool = False

    def __post_init__(self) -> None:
        if self.gains not in GAINS:
            raise InputError(
                f"gains {self.gains!r}, expected one of {', '.join(GAINS)}; transport the artifact "
                "again"
            )

    @classmethod
    def of(
        cls,
        gauge: Gauge,
        base_sha256: str,
        origin_sha256: str,
        gains: str = "native",
        margins: Mapping[str, float] | None = None,
        centred: bool = False,
    ) -> Sidecar:
        """The record of a gauge that leads from the origin to the base."""
        groups = {name: _group(element) for name, element in gauge.elements.items()}
        return cls(
            base_sha256,
            origin_sha256,
            gains,
            groups,
            {name: (margins or {}).get(name) for name in groups},
            centred,
        )


def _group(element: Any) -> str:
    if not isinstance(element, Monomial):
        return type(element).__name__.lower()
    if (element.factors == 1).all():
        return "permutation"
    return "signed permutation" if element.is_signed_permutation else "permutation with scales"


def sidecar_path(artifact: str | os.PathLike[str]) -> Path:
    """`gauge.json` in a folder, `<file name>.gauge.json` beside a file."""
    path = Path(artifact)
    return path / "gauge.json" if path.is_dir() else path.with_name(f"{path.name}.gauge.json")


@contextmanager
def new_artifact(
    destination: str | os.PathLike[str], sidecar: Sidecar, *sources: str | os.PathLike[str]
) -> Iterator[Path]:
    """Yield a temporary path for an artifact's file; it and its record take their places together.
    Raises InputError where one of the two exists, or lies inside a source folder (see
    `require_new`).
    """
    record = Path(destination).with_name(f"{Path(destination).name}.gauge.json")
    with new_output(destination, *sources) as temporary, new_output(record, *sources) as beside:
        write_sidecar(beside, sidecar)
        yield temporary


def write_sidecar(path: str | os.PathLike[str], sidecar: Sidecar) -> None:
    """Write it at `path`, which is temporary."""
    Path(path).write_text(
        json.dumps(asdict(sidecar), indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def read_sidecar(artifact: str | os.PathLike[str]) -> Sidecar | None:
    """The record beside an artifact, None without one. Raises InputError when it is malformed."""
    path = sidecar_path(artifact)
    if not path.is_file():
        return None
    try:
        return Sidecar(**json.loads(path.read_text(encoding="utf-8")))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path}: not a record of a gauge ({error}); delete it if the artifact fits its model "
            "as it is"
        ) from error


def check_origin(artifact: str | os.PathLike[str], sidecar: Sidecar) -> None:
    """InputError when the record beside an artifact says that it belongs to another model than the
    one it is to be moved from.
    """
    found = read_sidecar(artifact)
    if found and found.base_sha256 != sidecar.origin_sha256:
        raise InputError(
            f"{artifact}: belongs to the model {found.base_sha256[:12]}, the gauge leads from "
            f"{sidecar.origin_sha256[:12]}; use that gauge"
        )
