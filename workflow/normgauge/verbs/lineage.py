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
        "--where",
        action="store_true",
        help="also say which blocks, units and heads of the second of a pair come from the first",
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
    from normgauge.verbs.words.comparing import lineage_summary, origin_summary

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
        say(lineage_summary([each[:3] for each in found]))
        for a, b, _, where in found:
            if where:
                say(origin_summary(a, b, where))
    return 0


def _found(options: argparse.Namespace, folders: list[Any], initial: Any) -> list[tuple]:
    from dataclasses import replace

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.lineage.decision import lineage
    from normgauge.lineage.held_initial import DRAWS, fresh_initialisations, held_initial_test
    from normgauge.lineage.localisation import localise
    from normgauge.lineage.units import side_of

    sides = [side_of(open_checkpoint(folder)) for folder in folders]
    start = open_checkpoint(initial) if initial is not None else None
    found = []
    for (one, a), (other, b) in combinations(enumerate(sides), 2):
        result = lineage(a, b, None, options.seed, options.draws)
        if start is not None and one == 0:
            draws = min(DRAWS, options.draws)
            fresh = fresh_initialisations(start)
            test = held_initial_test(side_of(start), b, fresh, draws)
            result = replace(result, initial=test)
        where = localise(a, b) if options.where else None
        found.append((options.models[one], options.models[other], result, where))
    return found


def _document(a: str, b: str, found: Any, where: Any) -> dict[str, Any]:
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
        "expected": found.match.expected,
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
        **({"where": _places(where)} if where else {}),
    }


def _places(where: Any) -> dict[str, Any]:
    """By kind and layer of B: the layer of A, and the pairs (of A, of B) that were found."""
    return {
        kind: [
            {
                "layer": each.layer,
                "source": each.source or None,
                "pairs": getattr(each, kind).tolist(),
                "of": each.total,
            }
            for each in getattr(where, kind)
        ]
        for kind in ("units", "heads")
    }
