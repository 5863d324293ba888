# Some targets are studies of their own, with their own configuration. It is merged before the user's --configfile and handed on to jobs that run
# elsewhere, as if it had been given on the command line. Snakemake reads this file before it knows its targets, hence sys.argv.
from snakemake.common.configfile import load_configfile
from snakemake.utils import update_config

OWN_CONFIGURATION = {
    "smoke": "config/test/smoke.yaml",
    "dead_directions_scale": "config/dead_directions_scale.yaml",
    "table1_scale": "config/scale.yaml",
    "trained_vs_random_scale": "config/scale.yaml",
    "exact_recovery_scale": "config/scale.yaml",
    "signed_permutation_scale": "config/signed_permutation_scale.yaml",
    "trajectories_scale": "config/trajectories_scale.yaml",
    "scale_8b": "config/scale_8b.yaml",
}
TARGETS = requested_targets()
REQUESTED = [word for word in sys.argv[1:] if not word.startswith("-")]
ALONE = sorted(OWN_CONFIGURATION.keys() & set(REQUESTED))
OTHERS = sorted(
    {"all", "all_tables", "all_figures", *OWN_CONFIGURATION} & set(REQUESTED) - set(ALONE[:1])
)

if ALONE and OTHERS:
    sys.exit(f"error: {ALONE[0]} has its own configuration: ask for it without {', '.join(OTHERS)}")

for target in ALONE:

    configfile: beside(OWN_CONFIGURATION[target])

    workflow.overwrite_configfiles.insert(0, Path(beside(OWN_CONFIGURATION[target])).absolute())


def merged(files):
    found = {}
    for path in files:
        update_config(found, load_configfile(path))
    return found


# Other lists of models or pairs make another study, which is told apart from the default one by its name. A job that runs elsewhere is
# given the same files and comes to the same name.
OURS = {Path(beside(path)).absolute() for path in OWN_CONFIGURATION.values()}
GIVEN = [Path(path) for path in workflow.overwrite_configfiles]
USERS = [path for path in GIVEN if path not in OURS]
if USERS or workflow.config_settings.config:
    asked = merged(USERS)
    update_config(asked, dict(workflow.config_settings.config))
    ours = [beside("config/config.yaml"), *(path for path in GIVEN if path in OURS)]
    name = own_study(merged(ours), asked, USERS)
    if name is not None:
        config["study"]["name"] = name
