#!/usr/bin/env bash
# The program from end to end: ranks of its own, every collective, right results, exit statuses.
set -euo pipefail
collectives=$1
output=$TEST_TMPDIR/output
json=$TEST_TMPDIR/results.json
quick=(--iterations=2 --rounds=1 --warmup=1 --nopin)

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}

# Three ranks: blocks of unequal size, and sizes too small for them.
"$collectives" --nproc=3 --begin=4 --end=256K --factor=16 --json="$json" "${quick[@]}" >"$output" 2>&1 || fail "f32 sum failed"
grep -q '^# wrong elements: 0 OK$' "$output" || fail "no clean summary"
for collective in all_reduce broadcast reduce all_gather reduce_scatter barrier; do
  grep -q "^# $collective\$" "$output" || fail "no table of $collective"
  grep -q "\"collective\": \"$collective\"" "$json" || fail "nothing about $collective in the JSON file"
done

# In memory that the ranks share, nothing is carried.
LOCKSTEP_TRANSPORT=shm "$collectives" --nproc=3 --symmetric --begin=4 --end=256K --factor=16 "${quick[@]}" >"$output" 2>&1 ||
  fail "symmetric memory failed"
grep -q '^# wrong elements: 0 OK$' "$output" || fail "no clean summary in symmetric memory"

LOCKSTEP_TRANSPORT=tcp "$collectives" --collective=all_reduce --dtype=f16 --op=avg --algorithm=ring --async --begin=2K --end=512K --factor=256 \
  "${quick[@]}" >"$output" 2>&1 || fail "several in flight failed"
[[ $(grep -c ' f16 ' "$output") == 2 ]] || fail "expected two rows"
grep -q '^# transport: tcp 127' "$output" || fail "the transport is not told"

"$collectives" --nproc=2 --collective=all_reduce --end=8 --limits --limits_rounds=1 "${quick[@]}" >"$output" 2>&1 ||
  fail "the comparison failed"
[[ $(grep -c '^ *26214400 ' "$output") == 1 ]] || fail "no comparison at 25 MiB"

# Wrong usage is told before any rank starts.
status=0
"$collectives" --collective=allreduce >"$output" 2>&1 || status=$?
[[ $status == 2 ]] && grep -q "no collective 'allreduce'" "$output" || fail "unknown collective: exit status $status"
status=0
"$collectives" --nproc=3 --op=avg >"$output" 2>&1 || status=$?
[[ $status == 2 ]] && grep -q 'power of two' "$output" || fail "inexact average: exit status $status"
