#!/usr/bin/env bash
# Installs the Debian packages that some tests run against: a simulated InfiniBand fabric with the
# real tools, the journal. Tests say so and are left out where they are missing.
set -euo pipefail

packages=(
    gcc libc6-dev                          # the stand-in of libnvidia-ml
    ibsim-utils infiniband-diags opensm    # the fabric
    openssl                                # certificates of a broker that speaks TLS
    systemd systemd-journal-remote         # journalctl, a writer of journal files, systemd-analyze
)

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q "install ok installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ "$(id -u)" = 0 ] || { echo "Installing ${missing[*]} needs root." >&2; exit 1; }

export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends "${missing[@]}" > /dev/null
