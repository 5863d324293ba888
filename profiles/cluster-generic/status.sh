#!/usr/bin/env bash
# Print running, success or failed for the job id $1.
set -euo pipefail
status=.snakemake/local_cluster/${1#*.}/status
if [ ! -e "$status" ] && kill -0 "${1%%.*}" 2>/dev/null; then
    echo running
elif [ "$(cat "$status" 2>/dev/null)" = 0 ]; then
    echo success
else
    echo failed
fi
