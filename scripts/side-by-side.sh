#!/usr/bin/env bash
# side-by-side.sh COMMAND COMMAND: runs both at the same time, shows what each printed, and fails if either did.
set -uo pipefail
printed=$(mktemp -d)
trap 'rm -rf "$printed"' EXIT

bash -c "$1" >"$printed/first" 2>&1 &
first=$!
bash -c "$2" >"$printed/second" 2>&1 &
second=$!
wait "$first"
one=$?
cat "$printed/first"
wait "$second"
two=$?
cat "$printed/second"
exit $((one || two))
