#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make demo`: checks what is missing, builds what is not there yet, then hands
# over to the demo program, which ends by itself (KEEP=1 leaves the cluster up). SET has
# values of the chart, NAME=VALUE with spaces between them; GPU=real is for this machine's GPUs;
# KUEUE=1 installs Kueue as well; JOBSET=1, LWS=1, TRAINER=1 and KUBERAY=1 what they name.
set -euo pipefail
cd "$(dirname "$0")/../.."
# go-nvml declares NVML's deprecated functions; its warnings are not ours.
export CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations"

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

step "1/4  what this machine has"
missing=0
need() { command -v "$1" >/dev/null || { echo "  missing: $1. remedy: $2"; missing=1; }; }
wanted=$(awk '$1 == "go" { print $2 }' go.mod)
need go "install Go $wanted from https://go.dev/dl"
# The Makefile keeps go from fetching another version of itself.
if found=$(cd / && GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) && ! printf '%s\n' "go$wanted" "$found" | sort -V -C; then
    echo "  missing: Go $wanted (this is $found). remedy: install it from https://go.dev/dl"
    missing=1
fi
need gcc "apt-get install gcc"
need make "apt-get install make"
if [ "$(id -u)" -ne 0 ]; then
    echo "  missing: root, for network namespaces, cgroups and mounts. remedy: sudo make demo"
    missing=1
fi
[ "$(uname -sm)" = "Linux x86_64" ] || { echo "  missing: Linux on amd64 (this is $(uname -sm))"; missing=1; }
[ "$missing" -eq 0 ] || exit 1
test/deps.sh
mkdir -p bin
CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/ ./test/cluster/cmd/vernier-cluster
bin/vernier-cluster preflight
# What cannot be set is told before the long part.
[ -z "${SET:-}${GPU:-}" ] || go run ./test/demo --check

step "2/4  Vernier"
make --no-print-directory build

step "3/4  the cluster's own parts, from their Go modules (once; about 10 minutes on 2 cores)"
bin/vernier-cluster assets >/dev/null

step "4/4  the demo"
exec go run ./test/demo
