# Two targets are studies of their own, with their own configuration file. It is merged before the user's --configfile, and is handed on to jobs
# that run elsewhere as if it had been given on the command line.
from pathlib import Path

OWN_CONFIGURATION = {
    "smoke": "config/test/smoke.yaml",
    "table1_scale": "config/scale.yaml",
}
REQUESTED = [str(target) for target in getattr(workflow.dag_settings, "targets", None) or ()]

for target in sorted(OWN_CONFIGURATION.keys() & set(REQUESTED)):
    if len(REQUESTED) > 1:
        sys.exit(f"error: {target} has its own configuration: ask for it on its own, without {', '.join(set(REQUESTED) - {target})}")

    configfile: OWN_CONFIGURATION[target]

    workflow.overwrite_configfiles.insert(0, Path(OWN_CONFIGURATION[target]).absolute())
