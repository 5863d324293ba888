"""YAML files that people write, read without running anything in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from normgauge.errors import InputError, one_line

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, ten times as fast


@one_line("YAML")
def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The content of a YAML file. Raises InputError, with the line, when it cannot be read."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), _LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read as YAML ({error}); mend the file") from error
