#!/usr/bin/env bash
# Installs the Debian packages that some tests run against: a simulated InfiniBand fabric with the
# real tools, the journal. Tests say so and are left out where they are missing.
set -euo pipefail

packages=(
    gcc libc6-dev                          # the stand-in of libnvidia-ml
    ibsim-utils infiniband-diags opensm    # the fabric
    slurm-wlm slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge  # a cluster on loopback
    python3-torch                          # torchrun and gloo, for an elastic job of three nodes
    openssl                                # certificates of a broker that speaks TLS
    iproute2                               # network namespaces, for a cut network
    prometheus prometheus-alertmanager     # promtool and amtool: alert rules and their tests
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
