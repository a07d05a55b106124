#!/usr/bin/env bash
# Sees to it that Chromium is there: the tests open the page of examples/browser in it. Nothing is started here.
set -euo pipefail

found() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}

if found; then
    exit 0
elif ! command -v apt-get >/dev/null; then
    # The tests that need it fail and say the same; all others can run.
    echo "Chromium is not installed, so the tests in a browser will fail: dnf install chromium, brew install --cask chromium, …" >&2
elif [ "$(id -u)" -ne 0 ]; then
    echo "Chromium is not installed, so the tests in a browser will fail: sudo apt-get install chromium" >&2
else
    echo "installing Chromium, which the tests in a browser need"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install --yes --no-install-recommends chromium; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    found || { echo "the package chromium was installed, but there is no program of that name" >&2; exit 1; }
fi
