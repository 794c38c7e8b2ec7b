#!/usr/bin/env bash
# Builds the Kubernetes control plane that the adapter's tests run against, once, and keeps it in
# $RINGFENCE_CACHE; prints where it is. `--find` builds nothing and fails where it is not there.
# Needs Go 1.26 and the Go module proxy the first time.
# With one compiler at a time the build took six minutes (8.5 core-minutes) and 4 GiB under
# ~/.cache/go-build.
set -euo pipefail

here=$(cd "$(dirname "$0")/../tests/schedulers/kubernetes/server" && pwd)
cache=${RINGFENCE_CACHE:-$HOME/.cache/ringfence}
key=$(cat "$here/main.go" "$here/go.mod" "$here/go.sum" | sha256sum | cut -c1-12)
binary=$cache/kubeserver-$key

if [ ! -x "$binary" ]; then
    [ "${1:-}" != --find ] || { echo "deploy/test-apiserver.sh has not built it yet." >&2; exit 1; }
    command -v go > /dev/null || { echo "Go is missing: it builds the Kubernetes API server." >&2; exit 1; }
    mkdir -p "$cache"
    exec 9> "$cache/.kubeserver.lock"
    flock 9  # two test runs at once build once
    if [ ! -x "$binary" ]; then
        version=$(cd "$here" && go list -mod=mod -m -f '{{.Version}}' k8s.io/kubernetes)
        minor=${version#v1.}
        flags="-s -w"
        # Without its version a server calls itself v0.0.0 and refuses to start.
        for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
            flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
            flags+=" -X $package.gitTreeState=clean"
        done
        echo "Building the Kubernetes $version control plane into $binary (minutes)" >&2
        (cd "$here" && CGO_ENABLED=0 GOFLAGS=-mod=readonly \
            nice -n 10 go build -buildvcs=false -ldflags "$flags" -o "$binary.new" .)
        mv "$binary.new" "$binary"
    fi
fi
echo "$binary"
