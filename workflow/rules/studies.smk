# Some targets are studies of their own, with their own configuration. It is merged before the user's --configfile and handed on to jobs that run
# elsewhere, as if it had been given on the command line. Snakemake reads this file before it knows its targets, hence sys.argv.
import sys
from pathlib import Path

OWN_CONFIGURATION = {
    "smoke": "config/test/smoke.yaml",
    "table1_scale": "config/scale.yaml",
    "exact_recovery_scale": "config/scale.yaml",
    "signed_permutation_scale": "config/gauge-scale.yaml",
}
REQUESTED = [word for word in sys.argv[1:] if not word.startswith("-")]
ALONE = sorted(OWN_CONFIGURATION.keys() & set(REQUESTED))
OTHERS = sorted({"all", "all_tables", "all_figures", *OWN_CONFIGURATION} & set(REQUESTED) - set(ALONE[:1]))

if ALONE and OTHERS:
    sys.exit(f"error: {ALONE[0]} has its own configuration: ask for it without {', '.join(OTHERS)}")

for target in ALONE:

    configfile: OWN_CONFIGURATION[target]

    workflow.overwrite_configfiles.insert(0, Path(OWN_CONFIGURATION[target]).absolute())
