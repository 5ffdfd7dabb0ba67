#!/usr/bin/env bash
# The program from end to end, without peers: Lockstep over TCP and the limits, in two tiny rounds. And wrong usage.
set -euo pipefail
compare=$1
output=$TEST_TMPDIR/output
json=$TEST_TMPDIR/results.json
plot=$TEST_TMPDIR/plot.svg
export TMPDIR=$TEST_TMPDIR/scratch
mkdir "$TMPDIR"
quick=(--peers=none --rounds=2 --round_ms=2)

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}

"$compare" "${quick[@]}" --transports=tcp --sizes=8,1000,256K --json="$json" --plot="$plot" >"$output" 2>&1 ||
  fail "TCP failed"
grep -q '^# dropped' "$output" && fail "a contender was dropped"
# Medians and ratios; 1,000 bytes and 256 KiB are not powers of each other. No ping-pong of 256 KiB.
[[ $(grep -cE '^ +8( +[0-9.]+){3}$' "$output") == 1 ]] || fail "no times at 8 bytes"
[[ $(grep -cE '^ +256K( +[0-9.]+){2} +-$' "$output") == 1 ]] || fail "no times at 256 KiB"
[[ $(grep -cE '^ +1000( +[0-9.]+ \[[0-9.]+-[0-9.]+\]){2} *$' "$output") == 1 ]] || fail "no ratios at 1000 bytes"
grep -q '"transport": "tcp"' "$json" || fail "nothing in the JSON file"
grep -q '</svg>' "$plot" || fail "no plot"
[[ -z $(ls "$TMPDIR") ]] || fail "something is left in the scratch folder: $(ls -R "$TMPDIR")"

# Over libfabric, beside its bare provider.
"$compare" "${quick[@]}" --transports=ofi --sizes=8,256K >"$output" 2>&1 || fail "libfabric failed"
grep -q '^# dropped' "$output" && fail "a contender was dropped over libfabric"
[[ $(grep -cE '^ +8( +[0-9.]+){4,5}$' "$output") == 1 ]] || fail "no times at 8 bytes over libfabric"
if command -v fi_pingpong >/dev/null; then
  grep -qE '^# +fi_pingpong' "$output" || fail "no fi_pingpong"
else
  grep -q 'install .*libfabric-bin' "$output" || fail "it is not said how to install fi_pingpong"
fi

# Over shared memory, for more ranks than a pair: ordinary memory and the allocator's, each beside all others.
"$compare" "${quick[@]}" --transports=shm --nproc=3 --sizes=8,64K >"$output" 2>&1 || fail "shared memory failed"
grep -q '^# dropped' "$output" && fail "a contender was dropped over shared memory"
[[ $(grep -cE '^ +64K( +[0-9.]+){3}$' "$output") == 1 ]] || fail "no times over shared memory"
[[ $(grep -cE '^ +64K( +[0-9.]+ \[[0-9.]+-[0-9.]+\]){2} *$' "$output") == 2 ]] || fail "no ratios over shared memory"

# Wrong usage is told before anything starts.
refuses() {
  local text=$1
  shift
  local status=0
  "$compare" "$@" >"$output" 2>&1 || status=$?
  [[ $status == 2 ]] && grep -q "$text" "$output" || fail "$*: exit status $status"
}
refuses "no peer 'nccl'" --peers=nccl
refuses "no transport 'ib'" --transports=ib
refuses 'no vector' --sizes=6
refuses '1 ranks cannot be compared' --nproc=1
refuses 'a round at least' --rounds=0
