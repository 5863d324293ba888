#!/usr/bin/env bash
# Start the job script in the background, as a session of its own. Print its id: the process id, and the name of a folder that no
# other job has or had, so that nothing an older job left is taken for this one's.
set -euo pipefail
mkdir -p .snakemake/local_cluster
folder=$(mktemp -d .snakemake/local_cluster/XXXXXXXXXX)
setsid bash -c '"$1" >"$2/log" 2>&1; echo "$?" >"$2/status.part"; mv "$2/status.part" "$2/status"' submit "$1" "$folder" </dev/null >/dev/null 2>&1 &
echo "$!.${folder##*/}"
