#!/usr/bin/env bash
# distance_test.sh EMULATED_HOSTS DISTANT_RANK TRANSPORT: worlds of two hosts with two ranks each that are far apart, or lose segments.
#
# They must form, step, end in peace, and name a rank that dies or is stopped. All run at once, for they mostly wait.
set -euo pipefail
hosts=$1 rank=$2
export LOCKSTEP_TRANSPORT=$3 LOCKSTEP_PEER_TIMEOUT_MS=5000

# Milliseconds each way, percent lost, and how the world ends.
worlds=("0 0 leave" "10 0 leave" "50 0 leave" "150 0 leave" "400 0 leave" "400 0 die" "400 0 stop" "10 3 leave" "10 3 die")
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
pids=()
for i in "${!worlds[@]}"; do
  read -r delay loss end <<<"${worlds[i]}"
  "$hosts" --ranks-per-host 2 --delay "$delay" --loss "$loss" -- "$rank" "$end" >"$logs/$i" 2>&1 &
  pids+=($!)
done
failed=0
for i in "${!worlds[@]}"; do
  result=0
  wait "${pids[i]}" || result=$?
  if ((result == 77)); then
    echo "SKIPPED: ${worlds[i]}: $(cat "$logs/$i")"
  elif ((result)); then
    echo "FAILED: ${worlds[i]} (ms each way, percent lost, end) over $LOCKSTEP_TRANSPORT:"
    cat "$logs/$i"
    failed=1
  fi
done
exit $failed
