#!/usr/bin/env bash
# Sees to it that PostgreSQL's server programs are there: the tests start a server of their own. Nothing is started here.
set -euo pipefail

found() {
    command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

if found; then
    exit 0
elif ! command -v apt-get >/dev/null; then
    # The tests that need it fail and say the same; all others can run.
    echo "PostgreSQL is not installed, so the tests of the database store will fail: dnf install postgresql-server, brew install postgresql@17, …" >&2
elif [ "$(id -u)" -ne 0 ]; then
    echo "PostgreSQL is not installed, so the tests of the database store will fail: sudo apt-get install postgresql" >&2
else
    echo "installing PostgreSQL, which the tests of the database store need"
    # No cluster for the whole machine: it would only take a port and memory.
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    { apt-get update && apt-get install --yes --no-install-recommends postgresql; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    found || { echo "the package postgresql was installed, but has no initdb" >&2; exit 1; }
fi
