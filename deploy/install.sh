#!/usr/bin/env bash
# Installs requirements.lock and this checkout (editable) into the environment of $PYTHON, from a
# folder of wheels under $CACHE that is filled the first time and needs no network afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

pip=("$PYTHON" -m pip --disable-pip-version-check --quiet)
# The wheels differ by the lock, the interpreter and the machine.
lock=$("$PYTHON" -c 'import hashlib; print(hashlib.sha256(open("requirements.lock", "rb").read()).hexdigest()[:12])')
kind=$("$PYTHON" -c 'import sys, sysconfig; print(f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}")')
wheels="$CACHE/wheels-$lock-$kind"

if [ ! -e "$wheels/.complete" ]; then
    echo "Fetching the packages of requirements.lock into $wheels"
    mkdir -p "$CACHE"
    scratch=$(mktemp -d "$CACHE/.wheels-XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    if ! "${pip[@]}" download --require-hashes --dest "$scratch" --requirement requirements.lock; then
        echo "The packages could not be fetched; the lines above say why." >&2
        exit 1
    fi
    touch "$scratch/.complete"
    if [ ! -e "$wheels/.complete" ]; then # another checkout may have been faster
        rm -rf "$wheels"
        mv "$scratch" "$wheels"
    fi
fi

"${pip[@]}" install --no-index --find-links "$wheels" --require-hashes --requirement requirements.lock
"${pip[@]}" install --no-index --no-deps --no-build-isolation --editable .
