#!/usr/bin/env bash
# Sees to it that what the tests of the file door need is there: to mount a folder, to look at extended attributes from a shell, and to
# compile the example and the file system in C that the door is measured beside.
set -euo pipefail

missing=()
command -v fusermount3 >/dev/null || missing+=(fuse3)
command -v getfattr >/dev/null || missing+=(attr)
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v c++ >/dev/null || missing+=(g++)
{ command -v pkg-config >/dev/null && pkg-config --exists fuse3; } || missing+=(pkg-config libfuse3-dev)

if [ "${#missing[@]}" -eq 0 ]; then
    :
elif ! command -v apt-get >/dev/null; then
    # The tests that need it fail and say the same; all others can run.
    echo "the tests of the file door will fail: dnf install fuse3 fuse3-devel attr gcc gcc-c++ pkgconf, …" >&2
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
