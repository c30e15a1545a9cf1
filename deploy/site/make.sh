#!/usr/bin/env bash
# The site of docs/ in build/docs, by DELTAWIRE_DOCS_PYTHON's MkDocs and the programs in
# build/release, whose options and metrics it lists. Every link in it is checked.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
(($# == 0)) || {
  printf 'docs: unknown option %s\n' "$*" >&2
  exit 1
}
DELTAWIRE_BIN_DIR=$PWD/build/release/bin NO_MKDOCS_2_WARNING=1 \
  "$DELTAWIRE_DOCS_PYTHON" -B -m mkdocs build --quiet
"$DELTAWIRE_DOCS_PYTHON" -B deploy/site/check_site.py build/docs
printf '== build/docs/index.html; to search it, too: python3 -m http.server -d build/docs\n'
