#!/usr/bin/env bash
# The program from end to end: ranks of its own, right averages, every row, exit statuses. Times prove nothing here.
set -euo pipefail
overlap=$1
output=$TEST_TMPDIR/output
json=$TEST_TMPDIR/results.json
quick=(--model=mlp --compute_ms=1 --rounds=2 --round_ms=1 --nopin)

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}

expect() { # row...
  for row in "$@"; do [[ $(grep -c "^$row  *-\?[0-9]" "$output") == 1 ]] || fail "no row '$row'"; done
}

expect_rows_of() { # mode...
  expect 'compute only' 'communication only' 'ideal'
  for mode in "$@"; do
    expect "$mode: "{'without overlap','with overlap','exposed communication','step / ideal','without / with overlap'}
    grep -q "^#   $mode: .* copies of the gradients$" "$output" || fail "nothing about memory of $mode"
  done
  grep -q '^# the reducer itself' "$output" || fail "nothing about the reducer itself"
}

"$overlap" --nproc=2 --transport=shm --compute=busy --json="$json" "${quick[@]}" >"$output" 2>&1 || fail "busy failed"
expect_rows_of default copied views
expect "communication only in the allocator's memory" "ideal of the allocator's memory" \
  {default,copied,views}": step / ideal of the allocator's memory" 'default / views' 'copied / views'
grep -q '^# transport: shm$' "$output" || fail "the transport is not told"
python3 - "$json" <<'END' || fail "not every round is in the JSON file"
import json, sys
steps = [row for row in json.load(open(sys.argv[1]))['rows'] if 'step_ms' in row]
assert len(steps) == 16 and all(len(row['rounds_ms']) == 2 for row in steps), steps
END

"$overlap" --transport=shm --gradients=views,default --compute=busy --replicas "${quick[@]}" >"$output" 2>&1 || fail "views failed"
expect_rows_of views default
expect 'default / views'
expect 'all gradients / one flat vector'
grep -q '^# gradients: views, default$' "$output" || fail "where gradients live is not told"

"$overlap" --compute=stream "${quick[@]}" >"$output" 2>&1 || fail "stream failed"
expect_rows_of default copied views
grep -q '^# compute: stream, ' "$output" || fail "how it computes is not told"

# An odd world, buckets of its own, computation as long as communication.
"$overlap" --nproc=3 --transport=tcp --compute=away --first_bucket_cap_mb=0.25 --bucket_cap_mb=2 --caps_from_last \
  "${quick[@]}" --compute_ms=0 >"$output" 2>&1 || fail "away failed"
expect_rows_of default copied views
grep -q '^# bucket caps: 262144, 2097152 B, from the last gradients$' "$output" || fail "the caps are not told"
grep -q '^# compute: away, .*: chosen so that backward takes as long as communication$' "$output" ||
  fail "the choice is not told"

# On a GPU, where there is one.
status=0
"$overlap" --device=cuda --compute=stream --backend=staged "${quick[@]}" >"$output" 2>&1 || status=$?
if ((status == 77)); then
  grep -q 'overlap: CUDA: ' "$output" || fail "the reason is not told"
else
  ((status == 0)) || fail "on a GPU: exit status $status"
  expect_rows_of default copied views
  grep -q '^# gradients on: cuda:0' "$output" || fail "the device is not told"
fi

# Wrong usage is told before any rank starts.
expect_refusal() { # message flag...
  local message=$1
  shift
  status=0
  "$overlap" "$@" >"$output" 2>&1 || status=$?
  [[ $status == 2 ]] && grep -q "$message" "$output" || fail "$*: exit status $status"
}
expect_refusal "no model 'vgg'" --model=vgg
expect_refusal "no way to compute 'idle'" --compute=idle
expect_refusal "no device 'tpu'" --device=tpu
expect_refusal "no way to keep gradients 'moved'" --gradients=default,moved
expect_refusal 'gradients on a GPU are computed by a stream' --device=cuda
expect_refusal '1 ranks have nothing to average' --nproc=1
for ms in -1 nan inf; do expect_refusal 'a step cannot compute for' --compute_ms=$ms; done
expect_refusal 'a round at least' --rounds=0
expect_refusal 'of a millisecond' --round_ms=0
expect_refusal "'mlp' is no flag" mlp
