#!/usr/bin/env bash
# Sees to it that Java is there, on which Spark runs. Nothing is started here.
set -euo pipefail
least=17

found() {
    local java version
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)"; do
        if [ -n "$java" ]; then
            version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1) || true
            if [ "${version:-0}" -ge "$least" ]; then return 0; fi
        fi
    done
    return 1
}

if found; then
    exit 0
elif ! command -v apt-get >/dev/null; then
    # The tests that need it fail and say the same; all others can run.
    echo "there is no Java $least or newer, so the tests of Spark will fail: dnf install java-17-openjdk-headless, brew install openjdk@17, …" >&2
elif [ "$(id -u)" -ne 0 ]; then
    echo "there is no Java $least or newer, so the tests of Spark will fail: sudo apt-get install openjdk-17-jre-headless" >&2
else
    echo "installing Java, which Spark needs"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    export DEBIAN_FRONTEND=noninteractive
    # Newer systems have dropped 17; what they take for their own is newer.
    { apt-get update && { apt-get install --yes --no-install-recommends openjdk-17-jre-headless ||
        apt-get install --yes --no-install-recommends default-jre-headless; }; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    found || { echo "Java was installed, but there is none on the PATH that is $least or newer" >&2; exit 1; }
fi
