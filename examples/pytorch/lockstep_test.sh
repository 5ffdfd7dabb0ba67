#!/usr/bin/env bash
# lockstep_test.py, where there is a Python to run it.
set -euo pipefail
if ! command -v python3 >/dev/null; then
  echo 'skipped: no python3 here'
  exit 0
fi
exec python3 -B "$@"
