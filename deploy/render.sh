#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Renders the chart into a folder of plain manifests, which it replaces, with its default
# values or with some that are given as to Helm: deploy/render.sh FOLDER [--set …]
set -euo pipefail
to=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
deploy/tools/helm template vernier deploy/chart \
    --namespace vernier-system --set namespace.create=true --output-dir "$scratch" "$@" >/dev/null
# Helm ends every file with an empty line.
find "$scratch" -name '*.yaml' -exec sed -i '${/^$/d}' {} +
rm -rf "$to"
mv "$scratch/vernier/templates" "$to"
