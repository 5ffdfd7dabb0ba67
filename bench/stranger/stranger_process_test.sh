#!/usr/bin/env bash
# The program from end to end, with few strangers: all are counted, none is admitted, the world goes on.
set -euo pipefail
stranger=$1
output=$TEST_TMPDIR/output
json=$TEST_TMPDIR/results.json

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}

for transport in tcp shm; do
  "$stranger" --connections=2000 --seconds=1 --size=64K --transport=$transport --json="$json" >"$output" 2>&1 || fail "$transport failed"
  python3 - "$json" <<'END' || fail "$transport: wrong results"
import json, sys
row, = json.load(open(sys.argv[1]))['rows']
assert row['connections'] == sum(row['visits'].values()) >= 2000, row
assert row['admitted'] == [] and min(row['visits'].values()) > 0, row
assert row['turned_away'] + row['left'] == row['connections'], row
assert 0 < row['refusals'] <= row['connections'] + 100, row
assert {'does not have the secret', 'has another security level', 'is for something else'} <= set(row['refused']), row
assert min(row['steps_before'], row['steps_besieged'], row['steps_after']) > 0, row
END
done
