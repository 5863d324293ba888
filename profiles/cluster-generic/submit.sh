#!/usr/bin/env bash
# Start the job script in the background, as a session of its own, and print its process id as the job id.
set -euo pipefail
folder=.snakemake/local_cluster
mkdir -p "$folder"
setsid bash -c '"$1" >"$2/$$.log" 2>&1; echo "$?" >"$2/$$.status.part"; mv "$2/$$.status.part" "$2/$$.status"' submit "$1" "$folder" </dev/null >/dev/null 2>&1 &
echo "$!"
