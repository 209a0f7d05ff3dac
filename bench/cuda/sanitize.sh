#!/usr/bin/env bash
# The small tests of every kernel under compute-sanitizer: memcheck, then racecheck. Needs a GPU; about a minute.
set -euo pipefail
cd "$(dirname "$0")/../.."
small="test_embed or test_rows or test_heads or test_argmax or test_top or (test_matvec and 2) or test_group or test_gated"
small="$small or test_fewer or test_window or test_the_first_token"
for tool in memcheck racecheck; do
    echo "compute-sanitizer --tool $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 python -m pytest -q tests/cuda -m cuda -k "$small" "$@"
done
