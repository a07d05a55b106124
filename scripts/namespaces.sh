#!/usr/bin/env bash
# Sees to it that the commands are there by which the tests make network namespaces of their own. Nothing is made here.
set -euo pipefail

missing=()
command -v ip >/dev/null || missing+=(iproute2)
{ command -v unshare && command -v nsenter && command -v setpriv; } >/dev/null || missing+=(util-linux)

if [ "${#missing[@]}" -eq 0 ]; then
    exit 0
elif ! command -v apt-get >/dev/null; then
    # The tests that need it fail and say the same; all others can run.
    echo "the tests of partitions will fail: they need Linux, root, and ${missing[*]}" >&2
elif [ "$(id -u)" -ne 0 ]; then
    echo "the tests of partitions will fail: they need root, and sudo apt-get install ${missing[*]}" >&2
else
    echo "installing ${missing[*]}, which the tests of partitions need"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
