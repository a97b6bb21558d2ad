#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails when `make generate` would change a file.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
go tool controller-gen crd paths=./api/... output:crd:dir="$scratch/crds"
go tool controller-gen object paths=./api/... output:object:dir="$scratch"
deploy/render.sh "$scratch/manifests"
mkdir "$scratch/reference"
cp docs/reference/*.md "$scratch/reference"
CGO_ENABLED=0 go run ./docs/reference/gen "$scratch"/reference/*.md
mkdir "$scratch/pictures"
docs/pictures/render "$scratch/pictures"

stale=0
diff -u deploy/chart/files/crds "$scratch/crds" >&2 || stale=1
diff -ru --exclude=gen docs/reference "$scratch/reference" >&2 || stale=1
# make bench-colocate draws colocation.svg.
diff -ru --exclude='*.d2' --exclude=render --exclude=tool --exclude=colocation.svg docs/pictures "$scratch/pictures" >&2 || stale=1
diff -ru deploy/manifests "$scratch/manifests" >&2 || stale=1
diff -u api/v1alpha1/zz_generated.deepcopy.go "$scratch/zz_generated.deepcopy.go" >&2 || stale=1
if [ "$stale" -ne 0 ]; then
    echo "generated files are not current. remedy: make generate" >&2
    exit 1
fi
