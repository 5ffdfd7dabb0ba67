#!/usr/bin/env bash
# The program from end to end, with few connections: each listener is attacked in each phase, nobody is admitted, the worlds go on.
set -euo pipefail
program=$1
output=$TEST_TMPDIR/output
json=$TEST_TMPDIR/results.json

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}

for transport in tcp shm; do
  "$program" --connections=2000 --connections_per_phase=100 --seconds=1 --size=64K --transport=$transport --json="$json" >"$output" 2>&1 ||
    fail "$transport failed"
  python3 - "$json" $transport <<'END' || fail "$transport: wrong results"
import json, sys
row, = json.load(open(sys.argv[1]))['rows']
listeners = {'store', 'control', 'data' if sys.argv[2] == 'tcp' else 'local'}
assert row['connections'] == sum(row['attacks'].values()) >= 2000, row
assert row['admitted'] == [] and min(row['attacks'].values()) > 0, row
assert row['turned_away'] + row['left'] == row['connections'], row
for phase in 'train', 'close', 'form':
    # Shared memory has listeners only while the world forms.
    assert listeners - ({'local'} if phase != 'form' else set()) <= set(row['phases'][phase]), row
# Those that wait in a listener's queue as it closes are turned away by the kernel.
assert 0.5 * row['connections'] < row['refusals'] <= row['connections'] + 1000, row
assert row['worlds'] >= 2, row
assert {'does not have the secret', 'has another security level', 'is for something else'} <= set(row['refused']), row
assert min(row['steps_before'], row['steps_attacked'], row['steps_after']) > 0, row
END
done
