#!/usr/bin/env bash
# on_device.sh DEVICE PROGRAM...: runs a test's program on that device (tests/test_device.h).
set -euo pipefail
export LOCKSTEP_TEST_DEVICE=$1
shift
exec "$@"
