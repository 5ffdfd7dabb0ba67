#!/usr/bin/env bash
# The program from end to end: thousands of ranks, and what wrong flags are told.
set -euo pipefail
simulate=$1
output=$TEST_TMPDIR/output

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}

"$simulate" --ranks 4096 --hosts 512 --link 25gbit --latency 20us >"$output" 2>&1 || fail "no table"
grep -q '^all_reduce, 4096 ranks, 8 on each of 512 hosts, us$' "$output" || fail "no table of all_reduce"
# Each table is a line of its title, one of sizes (each a number and its unit), and one for each algorithm: a cell for each size.
awk '
  /^$/ { End(); next }
  / ranks, / { title = $0; next }
  $1 == "algorithm" { columns = (NF - 1) / 2; split("", marks); next }
  { cells = NF - 1; if (cells != columns) { print title ": " cells " cells of " $1; wrong = 1 }
    for (i = 1; i <= cells; i++) marks[i] += gsub(/\*/, "", $(i + 1)) }
  END { End(); exit wrong || tables != 9 }
  function End(   i) {
    if (!columns) return
    for (i = 1; i <= columns; i++) if (marks[i] != 1) { print title ": " marks[i] + 0 " choices in column " i; wrong = 1 }
    columns = 0
    ++tables
  }' "$output" || fail "not one choice for each size of nine collectives"

"$simulate" --ranks=12 --hosts=3 --collective=reduce --sizes=4M --step_by_step >"$output" 2>&1 ||
  fail "simulating failed"
grep -q '^binomial  *[0-9]' "$output" || fail "no line of binomial"

"$simulate" --ranks=2 --collective=all_reduce --sizes=8,64K >"$output" 2>&1 || fail "no table of one host"
grep -q '^inline  *[0-9.]*\* *- $' "$output" || fail "no choice of inline"
grep -q '^direct  *[0-9.]*  *[0-9.]*+$' "$output" || fail "no choice of direct"
"$simulate" --ranks=2 --local_link=tcp >"$output" 2>&1 || fail "no table of TCP on one host"
! grep -E '^(direct|inline|staged)' "$output" || fail "shared-memory algorithms without shared memory"

# Messages cost more where their ends share cores, so that fewer of them are better.
"$simulate" --ranks=4 --local_link=tcp --collective=all_reduce --sizes=8 >"$output" 2>&1 || fail "no table of spare cores"
grep -q '^one_shot  *[0-9.]*\*' "$output" || fail "no choice of one_shot"
"$simulate" --ranks=4 --cores=2 --local_link=tcp --collective=all_reduce --sizes=8 >"$output" 2>&1 ||
  fail "no table of shared cores"
grep -q '^recursive_doubling  *[0-9.]*\*' "$output" || fail "no choice of recursive_doubling"

expect_refusal() {
  local message=$1 status=0
  shift
  "$simulate" "$@" >"$output" 2>&1 || status=$?
  [[ $status == 2 ]] || fail "$*: exit status $status"
  grep -q -- "$message" "$output" || fail "$*: no '$message'"
}
expect_refusal "does not divide --ranks=10" --ranks=10 --hosts=4
expect_refusal "is no number of cores" --cores=-1
expect_refusal "'fast' is no bandwidth" --link=fast
expect_refusal "'20' is no latency" --latency=20
expect_refusal "no collective 'allreduce'" --collective=allreduce
expect_refusal "no link class 'rdma'" --local_link=rdma
expect_refusal "is no size in bytes" --sizes=8,many
expect_refusal "'25gbit' is no flag" 25gbit
