#!/usr/bin/env bash
# distance_test.sh EMULATED_HOSTS DISTANT_RANK TRANSPORT: worlds of two hosts with two ranks each that are far apart, or lose segments.
#
# They must form, step, end in peace, and name a rank that dies, is stopped or exits; or all ranks must know why there is no world. All
# worlds run at the same time, since they mostly wait.
set -euo pipefail
hosts=$1 rank=$2
export LOCKSTEP_TRANSPORT=$3 LOCKSTEP_PEER_TIMEOUT_MS=5000

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
names=() pids=()
start() { # name, arguments of emulated-hosts...
  names+=("$1")
  shift
  "$hosts" --ranks-per-host 2 "$@" >"$logs/${#pids[@]}" 2>&1 &
  pids+=($!)
}
# Milliseconds each way, percent lost, and how the world ends.
for world in "0 0 leave" "10 0 leave" "50 0 leave" "150 0 leave" "400 0 leave" "0 0 die" "50 0 stop" "150 0 die" "400 0 die" "400 0 stop" \
  "150 0 exit 3" "400 0 exit 3" "400 0 exit 0" \
  "10 3 leave" "10 3 die" "10 3 exit 3" "150 3 stop"; do
  read -r delay loss end <<<"$world"
  # A segment that is lost several times comes after seconds.
  LOCKSTEP_PEER_TIMEOUT_MS=$((loss ? 20000 : 5000)) start "$delay ms each way, $loss % lost, then $end" --delay "$delay" --loss "$loss" -- "$rank" "$end"
done
# Where no launcher says that there are several hosts, nothing but the error of a rank does.
alone=(env -u LOCKSTEP_LOCAL_RANK -u LOCKSTEP_LOCAL_WORLD_SIZE)
start "without a secret" -- "${alone[@]}" -u LOCKSTEP_SECRET_FILE "$rank" "a world on several hosts needs a secret"
late=(bash -c '((LOCKSTEP_RANK)) || sleep 7; exec "$@"' bash)
start "without a secret, and rank 0 starts later" -- "${alone[@]}" -u LOCKSTEP_SECRET_FILE "${late[@]}" \
  "$rank" "a world on several hosts needs a secret"
start "on loopback" -- "${alone[@]}" LOCKSTEP_INTERFACE=lo "$rank" "listens on loopback"

failed=0
for i in "${!pids[@]}"; do
  result=0
  wait "${pids[i]}" || result=$?
  if ((result == 77)); then
    echo "SKIPPED: ${names[i]}: $(cat "$logs/$i")"
  elif ((result)); then
    echo "FAILED: ${names[i]}, over $LOCKSTEP_TRANSPORT:"
    cat "$logs/$i"
    failed=1
  fi
done
exit $failed
