#!/usr/bin/env bash
# Sees to it that what the tests of the file door need is there: a folder can be mounted, and the example in C compiled.
set -euo pipefail

missing=()
command -v fusermount3 >/dev/null || missing+=(fuse3)
command -v cc >/dev/null || missing+=(gcc libc6-dev)

if [ "${#missing[@]}" -eq 0 ]; then
    :
elif ! command -v apt-get >/dev/null; then
    # The tests that need it fail and say the same; all others can run.
    echo "the tests of the file door will fail: they need fusermount3 and a C compiler: dnf install fuse3 gcc, …" >&2
elif [ "$(id -u)" -ne 0 ]; then
    echo "the tests of the file door will fail: sudo apt-get install ${missing[*]}" >&2
else
    echo "installing ${missing[*]}, which the tests of the file door need"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
if [ ! -e /dev/fuse ]; then
    echo "the tests of the file door will fail: there is no /dev/fuse (modprobe fuse; in a container --device /dev/fuse --cap-add SYS_ADMIN)" >&2
fi
