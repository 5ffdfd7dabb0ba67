#!/usr/bin/env bash
# run_test.sh RANKS NAME [LIBRARY]: runs python/NAME.py as so many ranks, with LIBRARY in the place of the package's liblockstep.so.
set -euo pipefail
# As a module: Python puts the folder of a script, with links followed, before all others, and that is the source tree.
export PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1
exec python/lockstep/_lib/lockstep-run -n "$1" --foreground 0 env ${3:+LD_PRELOAD="$PWD/$3"} "${QEMU_LD_PREFIX:-}/usr/bin/python3" -m "$2"
