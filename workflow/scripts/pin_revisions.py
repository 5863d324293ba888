"""Ask the hub for the present commit of every unpinned model of a configuration; print a
configuration to merge over it.

python workflow/scripts/pin_revisions.py config/paper.yaml > config/pins.yaml
snakemake all --configfile config/paper.yaml config/pins.yaml
"""

import sys
from pathlib import Path

import yaml
from huggingface_hub import HfApi

UNPINNED = "unpinned"


def pin(models: dict) -> dict:
    """The `models:` section that replaces `revision: unpinned` by the commit that the hub's main
    branch names now.
    """
    hub, pins = HfApi(), {}
    for model, entry in models.items():
        if entry["source"].get("revision") == UNPINNED:
            repository = entry["source"]["hub"]
            try:
                pins[model] = {
                    "source": {"revision": hub.model_info(repository, revision="main").sha}
                }
            # the hub's client raises errors of several libraries, none of them a defect here
            except Exception as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                sys.exit(
                    f"error: models.{model}.source.hub: {repository}: {reason}; check its name, "
                    "your access to it and the network"
                )
    return {"models": pins}


if __name__ == "__main__":
    print(
        yaml.safe_dump(
            pin(yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))["models"])
        ),
        end="",
    )
