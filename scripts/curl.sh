#!/usr/bin/env bash
# Sees to it that curl is there: the tests run the commands of the page on the JSON door.
set -euo pipefail

if command -v curl >/dev/null; then
    exit 0
elif ! command -v apt-get >/dev/null; then
    # The test that needs it fails and says the same; all others can run.
    echo "curl is not installed, so the test of docs/howto/json.md will fail: dnf install curl, brew install curl, …" >&2
elif [ "$(id -u)" -ne 0 ]; then
    echo "curl is not installed, so the test of docs/howto/json.md will fail: sudo apt-get install curl" >&2
else
    echo "installing curl, which the test of docs/howto/json.md needs"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install --yes --no-install-recommends curl; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
