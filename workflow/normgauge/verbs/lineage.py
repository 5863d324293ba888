"""`normgauge lineage A B [C ...]`: which checkpoints were made from one another, with p-values."""

from __future__ import annotations

import argparse
from itertools import combinations
from typing import Any

from normgauge.verbs.arguments import MODEL, add_output, add_settings, count, positive

HELP = (
    "which of A, B, ... were made from one another or from one initialisation: exact p-values, and "
    "a count that survives changes of coordinates"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs="+", help=f"two or more: {MODEL}")
    parser.add_argument(
        "--initial",
        metavar="A0",
        help="the initial weights of the first model: makes the test exact behind any change of "
        "coordinates",
    )
    parser.add_argument(
        "--draws",
        type=positive,
        default=9999,
        help="permutations of each exact test (9999); at most 99 fresh initialisations",
    )
    parser.add_argument("--seed", type=count, default=0, help="of what is drawn (0)")
    add_settings(parser)
    add_output(parser, folder=False)


def run(options: argparse.Namespace) -> int:
    from contextlib import ExitStack

    from normgauge.errors import InputError
    from normgauge.verbs.output import say, say_json
    from normgauge.verbs.places import model_folder
    from normgauge.verbs.words import lineage_summary

    if len(options.models) < 2:
        raise InputError("lineage: names one model; name two or more")
    with ExitStack() as stack:
        folders = [
            stack.enter_context(model_folder(name, options.config)) for name in options.models
        ]
        initial = (
            stack.enter_context(model_folder(options.initial, options.config))
            if options.initial
            else None
        )
        found = _found(options, folders, initial)
    if options.json:
        say_json({"pairs": [_document(*each) for each in found]})
    else:
        say(lineage_summary(found))
    return 0


def _found(options: argparse.Namespace, folders: list[Any], initial: Any) -> list[tuple]:
    from dataclasses import replace

    from normgauge.checkpoints.building import reinitialise
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.lineage.decision import lineage
    from normgauge.lineage.held_initial import DRAWS, held_initial_test
    from normgauge.lineage.units import side_of

    sides = [side_of(open_checkpoint(folder)) for folder in folders]
    found = []
    for (one, a), (other, b) in combinations(enumerate(sides), 2):
        result = lineage(a, b, None, options.seed, options.draws)
        if initial is not None and one == 0:
            start = open_checkpoint(initial)
            held = side_of(start)

            def fresh(seed: int, start: Any = start) -> Any:
                return dict(reinitialise(start, seed, "float32").state_dict())

            draws = min(DRAWS, options.draws)
            test = held_initial_test(held.anatomy, held.tensors, b, fresh, draws)
            result = replace(result, initial=test)
        found.append((options.models[one], options.models[other], result))
    return found


def _document(a: str, b: str, found: Any) -> dict[str, Any]:
    tests = {
        name: vars(test)
        for name, test in (
            ("units", found.units),
            ("stream", found.stream),
            ("initial", found.initial),
        )
        if test
    }
    match = {
        "agreements": found.match.agreements,
        "units": found.match.units,
        "expected": len(found.match.layers),
        "p": found.match.p,
        "layers": [vars(each) for each in found.match.layers],
    }
    return {
        "a": a,
        "b": b,
        "verdict": found.verdict,
        "exact_p": found.exact_p,
        "exact": tests,
        "count": match,
        "layers_with_shared_units": found.sources,
    }
