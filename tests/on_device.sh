#!/usr/bin/env bash
# on_device.sh DEVICE PROGRAM...: runs a test's program on that device (tests/test_device.h).
set -euo pipefail
export DEVICE_UNDER_TEST=$1
shift
exec "$@"
