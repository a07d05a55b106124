#!/usr/bin/env bash
# Runs a command that may be silent for minutes, and says every few seconds that it still runs: scripts/heartbeat.sh WHAT COMMAND...
#
# The command keeps the terminal, so pip and cargo show their own progress there.
set -euo pipefail
every=${HEARTBEAT:-15}
what=$1
shift

erase=''
if [ -t 2 ]; then erase=$'\r\033[K'; fi # a progress bar may stand in this line
(
    trap 'kill "${pause:-}" 2>/dev/null; exit' TERM
    while true; do
        sleep "$every" &
        pause=$!
        wait "$pause"
        printf '%s%s: %d s so far\n' "$erase" "$what" "$SECONDS" >&2
    done
) &
heart=$!
trap 'kill "$heart" 2>/dev/null || true' EXIT
status=0
"$@" || status=$?
exit "$status"
