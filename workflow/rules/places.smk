# Where our own files are: in the working folder, else beside the Snakefile (snakemake -s .../Snakefile -d elsewhere).
import os
import sys
from pathlib import Path

WORKFLOW = Path(workflow.basedir) / "workflow"
sys.path.insert(0, str(WORKFLOW))

from command_line import refuse_target, fail, own_study, requested_targets


def beside(path):
    """A path of the repository's, as it is where it exists in the working folder."""
    ours = Path(workflow.basedir) / path
    return str(ours) if not os.path.lexists(path) and ours.exists() else path
