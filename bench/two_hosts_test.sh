#!/usr/bin/env bash
# Between two emulated hosts: right sums, the bytes that must cross the link, and a cable that is pulled in the middle of it.
set -euo pipefail
emulated_hosts=$1
collectives=$2
output=$TEST_TMPDIR/output

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}

status=0
"$emulated_hosts" --rate 10gbit -- "$collectives" --collective=all_reduce --begin=1M --end=1M --iterations=4 --warmup=1 \
  --rounds=1 --nopin >"$output" 2>&1 || status=$?
if ((status == 77)); then
  echo "skipped: $(cat "$output")"
  exit 0
fi
((status == 0)) || fail "exit status $status"
grep -q '^# wrong elements: 0 OK$' "$output" || fail "no clean summary"

# Out of place and in place: a checked call, a warm-up and four timed calls each, and every call moves 1 MiB each way.
for host in 0 1; do
  sent=$(sed -n "s/^# host $host: sent \([0-9]*\) bytes.*/\1/p" "$output")
  ((sent > 10 * (1 << 20) && sent < 15 * (1 << 20))) || fail "host $host sent $sent bytes"
done

# Beside bare sockets on the same link.
"$emulated_hosts" --rate 10gbit -- "$collectives" --collective=all_reduce --begin=8 --end=8 --iterations=1 --rounds=1 \
  --nopin --limits --limits_host=10.77.0.1 --limits_rounds=1 --round_ms=1 >"$output" 2>&1 || fail "no comparison with bare sockets"
grep -q '^ *26214400 .*[0-9]' "$output" || fail "no row of 25 MiB beside bare sockets"

"$emulated_hosts" --hosts 3 --ranks-per-host 2 -- sh -c 'test $LOCKSTEP_WORLD_SIZE = 6 && exit $LOCKSTEP_RANK' \
  >"$output" 2>&1 && fail "a failing rank goes unnoticed"
grep -q 'rank 5 failed with 5' "$output" || fail "the rank that failed is not named"

# Rank 1 loses its link for good while they are at it: both sides notice by the missing heartbeats, and nobody hangs.
pulled='[ $LOCKSTEP_RANK = 1 ] && (sleep 0.5; PATH=$PATH:/usr/sbin:/sbin ip link set eth0 down) & exec "$0" "$@"'
status=0
LOCKSTEP_PEER_TIMEOUT_MS=1000 timeout --kill-after=5 40 "$emulated_hosts" -- sh -c "$pulled" "$collectives" \
  --collective=all_reduce --begin=1M --end=1M --iterations=1000000 --rounds=1000 --nopin >"$output" 2>&1 || status=$?
((status == 1)) || fail "with the cable pulled: exit status $status"
grep -q 'rank 1 (host .*) is unresponsive: no heartbeat for 1 s' "$output" || fail "rank 0 does not name rank 1"
grep -q 'rank 0 (host .*) is unresponsive: no heartbeat for 1 s' "$output" || fail "rank 1 does not name rank 0"
