"""What the command line of Snakemake asks for: refused in one line where Snakemake would end in a
traceback.

Loaded by the profiles, before Snakemake reads a configuration file, and by the Snakefile. Nothing
of the library is imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml

# What is measured and shown: a file that changes one of these lists asks for a study of its own.
LISTS = {
    "study": ("models",),
    "exact_recovery": ("models", "second_route"),
    "signed_permutation": ("models", "recovered", "audited", "aligned"),
    "trajectories": ("runs", "apart", "merging", "resuming"),
    "redundancy": ("models", "shapes", "small"),
    "checkpoint_comparison": ("pairs",),
    "lineage": ("sets", "hidden"),
}
TAKEN = ("smoke", "scale")  # study names of the configurations that targets bring themselves


def fail(message: object) -> NoReturn:
    """End with one line on stderr: the command line, the configuration or a target cannot be
    used.
    """
    sys.exit("error: " + " ".join(str(message).split()))


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that names the closest of what is known, or nothing."""
    found = get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; the nearest: {', '.join(found)}" if found else ""


def requested_targets() -> list[str]:
    """The targets of this command, as Snakemake's own parser finds them; none where Snakemake runs
    in another program.
    """
    from snakemake.cli import get_argument_parser

    try:
        return list(get_argument_parser().parse_known_args(sys.argv[1:])[0].targets)
    except SystemExit:
        return []


def check_configfiles() -> None:
    """Refuse each file of --configfile that is none: it is missing, no YAML, or a target that the
    option has swallowed.
    """
    from snakemake.cli import get_argument_parser

    for path in get_argument_parser().parse_known_args(sys.argv[1:])[0].configfile or ():
        check_configfile(Path(path))


def check_configfile(path: Path) -> None:
    if not path.is_file():
        beside = (
            [str(path.parent / other.name) for other in path.parent.glob("*.y*ml")]
            if path.parent.is_dir()
            else []
        )
        targets = (
            ""
            if path.suffix in (".yaml", ".yml", ".json")
            else "; a target comes before --configfile, which takes a list"
        )
        fail(f"--configfile {path}: no such file{nearest(str(path), beside)}{targets}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        fail(f"--configfile {path}: expected YAML in UTF-8 ({error}); correct it")
    if not isinstance(content, dict):
        fail(
            f"--configfile {path}: expected keys and values, found {type(content).__name__}; see "
            "config/README.md"
        )


def own_study(
    base: Mapping[str, Any], given: Mapping[str, Any], files: Sequence[Path]
) -> str | None:
    """The name of the study that `given`, from the user's files and --config, asks for on top of
    `base`.

    None where `given` names it, or leaves every list of LISTS as it is. Else the names of the
    files, without their suffixes.
    """
    if "name" in _section(given, "study") or not _changes(base, given):
        return None
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(path.stem for path in files)).lstrip("._-")
    return f"own-{name}".rstrip("-") if not name or name in TAKEN else name


def _changes(base: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    return any(
        key in _section(given, section)
        and _section(given, section)[key] != _section(base, section).get(key)
        for section, keys in LISTS.items()
        for key in keys
    )


def _section(configuration: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = configuration.get(name)
    return found if isinstance(found, Mapping) else {}


def refuse_target(target: str, rules: Iterable[str], files: Iterable[str]) -> NoReturn:
    """End with one line on a target that no rule makes: the nearest of the rules and of the files
    without wildcards.
    """
    fail(
        f"{target}: no rule makes it{nearest(target, (*rules, *files))}; README.md lists the "
        "targets"
    )
