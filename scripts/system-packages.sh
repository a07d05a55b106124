#!/usr/bin/env bash
# Installs the system packages that tests and the demo need, after it has listed them: scripts/system-packages.sh NEED...
#
# NEED is java, postgresql, namespaces, chromium, curl or fuse. The variable SYSTEM decides about missing packages:
#   ask   (default) as root with apt-get: list them, ask on a terminal, install them without a terminal
#   yes   install them without a question
#   no    install nothing
# Packages that stay missing are named with their command. The tests that need them fail; all others can run.
set -euo pipefail
least_java=17
packages=()
reasons=()
others=()

missing() { # PACKAGES REASON COMMANDS-OF-OTHER-SYSTEMS
    packages+=("$1")
    reasons+=("$2")
    others+=("$3")
}

has_java() {
    local java version
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)"; do
        if [ -n "$java" ]; then
            version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1) || true
            if [ "${version:-0}" -ge "$least_java" ]; then return 0; fi
        fi
    done
    return 1
}

has_postgresql() {
    command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

has_chromium() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}

need() {
    case $1 in
    java)
        has_java || missing openjdk-17-jre-headless "no Java $least_java or newer, which Spark needs" \
            "dnf install java-17-openjdk-headless, brew install openjdk@17"
        ;;
    postgresql)
        has_postgresql || missing postgresql "no PostgreSQL, which the tests of the database store start" \
            "dnf install postgresql-server, brew install postgresql@17"
        ;;
    namespaces)
        command -v ip >/dev/null || missing iproute2 "no ip, which the tests of partitions need (with root)" "dnf install iproute"
        { command -v unshare && command -v nsenter && command -v setpriv; } >/dev/null ||
            missing util-linux "no unshare, nsenter or setpriv, which the tests of partitions need" "dnf install util-linux"
        ;;
    chromium)
        has_chromium || missing chromium "no Chromium, which the tests of the page in examples/browser open" \
            "dnf install chromium, brew install --cask chromium"
        ;;
    curl)
        command -v curl >/dev/null || missing curl "no curl, which the test of docs/howto/json.md runs" "dnf install curl, brew install curl"
        ;;
    fuse)
        command -v fusermount3 >/dev/null || missing fuse3 "no fusermount3, which the tests of the file door mount with" "dnf install fuse3"
        command -v getfattr >/dev/null || missing attr "no getfattr, which the tests of the file door call" "dnf install attr"
        command -v cc >/dev/null || missing "gcc libc6-dev" "no C compiler, for the example of the file door in C" "dnf install gcc"
        command -v c++ >/dev/null || missing g++ "no C++ compiler, for the tests of the file door" "dnf install gcc-c++"
        { command -v pkg-config >/dev/null && pkg-config --exists fuse3; } ||
            missing "pkg-config libfuse3-dev" "no libfuse3, which the file door is compared with" "dnf install fuse3-devel pkgconf"
        [ -e /dev/fuse ] ||
            echo "the tests of the file door will fail: there is no /dev/fuse (modprobe fuse; in a container --device /dev/fuse --cap-add SYS_ADMIN)" >&2
        ;;
    *)
        echo "usage: scripts/system-packages.sh java|postgresql|namespaces|chromium|curl|fuse..." >&2
        exit 2
        ;;
    esac
}

list() {
    local place
    for place in "${!packages[@]}"; do
        printf '  %-24s %s%s\n' "${packages[$place]}" "${reasons[$place]}" "${1:+ (${others[$place]})}" >&2
    done
}

leave_out() { # WHY [names of other systems]
    echo "These system packages are missing, and what needs them will fail ($1):" >&2
    list "${2:-}"
}

install() {
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # PostgreSQL: no cluster for the whole machine
    apt-get update
    local names="${packages[*]}"
    # Newer systems have dropped Java 17; their default is newer.
    if [[ $names == *openjdk-17-* ]] && ! apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
        names=${names/openjdk-17-jre-headless/default-jre-headless}
    fi
    # shellcheck disable=SC2086 # several names, one word each
    apt-get install --yes --no-install-recommends $names
}

for one in "$@"; do need "$one"; done
[ "${#packages[@]}" -gt 0 ] || exit 0

case ${SYSTEM:=ask} in
ask | yes | no) ;;
*) echo "SYSTEM is ask, yes or no, not '$SYSTEM'" >&2; exit 2 ;;
esac
if [ "$SYSTEM" = no ]; then
    leave_out "SYSTEM=no installs nothing"
elif ! command -v apt-get >/dev/null; then
    leave_out "there is no apt-get here" others
elif [ "$(id -u)" -ne 0 ]; then
    leave_out "only root can install: sudo apt-get install ${packages[*]}"
else
    echo "apt-get is about to install these system packages (SYSTEM=no leaves them out):" >&2
    list
    if [ "$SYSTEM" = ask ] && [ -t 0 ] && [ -t 2 ]; then
        read -r -p "Install them? [Y/n] " answer
        case $answer in [nN]*) leave_out "you said no"; exit 0 ;; esac
    fi
    install
    packages=() reasons=() others=()
    for one in "$@"; do need "$one"; done
    if [ "${#packages[@]}" -gt 0 ]; then
        echo "apt-get has installed the packages, but these are still not found:" >&2
        list
        exit 1
    fi
fi
