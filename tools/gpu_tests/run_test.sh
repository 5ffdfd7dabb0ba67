#!/usr/bin/env bash
# `run` over a folder of scripts that pass, fail, skip and hang, and that write what GoogleTest does.
set -euo pipefail
folder=$TEST_TMPDIR/package
output=$TEST_TMPDIR/output
logs=$TEST_TMPDIR/logs
mkdir -p "$folder/bin" "$folder/lib"
cp "$1" "$folder/run"
echo 'commit    0123abc' >"$folder/MANIFEST"

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}
program() { # name, whose text is standard input
  { echo '#!/usr/bin/env bash'; cat; } >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}
start() { # status argument...
  local want=$1 status=0
  shift
  PATH=$folder/path:$PATH "$folder/run" --out "$logs" "$@" >"$output" 2>&1 || status=$?
  ((status == want)) || fail "run $*: exit status $status instead of $want"
}
expect() { grep -qE "$1" "$output" || fail "no line /$1/"; }
expect_not() { ! grep -qE "$1" "$output" || fail "there is a line /$1/"; }

program passes <<<'[[ -d $TEST_TMPDIR && -z $(ls -A "$TEST_TMPDIR") ]] && touch "$TEST_TMPDIR/left behind"'
program fails <<<'echo the cause; exit 3'
program skips <<<'echo; echo no device here; exit 77'
program hangs <<<'echo waiting; sleep infinity'
# In a process group of its own, as ranks are.
program leaves_something <<<'set -m; sleep infinity & echo $! >"$PID_FILE"'
export PID_FILE=$TEST_TMPDIR/pid
program table <<<'echo "flatten 91 %"'
program gtest_passes <<<'printf "[==========] 2 tests from 1 test suite ran.\n[  PASSED  ] 2 tests.\n"'
program gtest_skips_one <<'SCRIPT'
printf 'a_test.cc:7: Skipped\nUNAVAILABLE: no second device\n\n[  SKIPPED ] A.B (0 ms)\n'
printf '[  PASSED  ] 1 test.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] A.B\n'
SCRIPT
program gtest_skips_all <<'SCRIPT'
printf 'a_test.cc:7: Skipped\nUNAVAILABLE: no driver\n\na_test.cc:9: Skipped\nanother reason\n\n'
printf '[  PASSED  ] 0 tests.\n[  SKIPPED ] 2 tests, listed below:\n[  SKIPPED ] A.B\n[  SKIPPED ] A.C\n'
SCRIPT
program gtest_has_none <<<'printf "[==========] 0 tests from 0 test suites ran.\n[  PASSED  ] 0 tests.\n"'

cat >"$folder/entries" <<'ENTRIES'
# a comment
test base/passes 30 bin/passes

test base/passes_again 30 bin/passes
test base/skips 30 bin/skips
test gtest/passes 30 bin/gtest_passes
test gtest/skips_one 30 bin/gtest_skips_one
test gtest/skips_all 30 bin/gtest_skips_all
bench table 30 bin/table
bench elsewhere 30 no-such-interpreter script.py
ENTRIES
start 0
expect '^commit    0123abc$'
expect '^PASS  base/passes +[0-9.]+ s'
expect '^PASS  base/passes_again '
expect '^SKIP  base/skips +[0-9.]+ s  no device here$'
expect '^PASS  gtest/passes .* 2 tests$'
expect '^PASS  gtest/skips_one .* 1 tests, 1 skipped: UNAVAILABLE: no second device$'
expect '^SKIP  gtest/skips_all .* UNAVAILABLE: no driver$'
expect '^PASS  table '
expect '^SKIP  elsewhere .* no-such-interpreter is not on this machine$'
expect '^flatten 91 %$'
[[ $(tail -n 1 "$output") == '5 passed, 0 failed, 3 skipped' ]] || fail 'another summary'
[[ $(<"$logs/table.log") == 'flatten 91 %' ]] || fail 'no log'

cat >>"$folder/entries" <<'ENTRIES'
test base/fails 30 bin/fails
test base/hangs 1 bin/hangs
test gtest/has_none 30 bin/gtest_has_none
ENTRIES
start 1
expect '^FAIL  base/fails .* exit status 3$'
expect '^FAIL  base/hangs .* not done after 1 s$'
expect '^FAIL  gtest/has_none .* it has no tests$'
expect '^the cause$'
expect '^waiting$'
[[ $(tail -n 1 "$output") == '5 passed, 3 failed, 3 skipped' ]] || fail 'another summary with failures'

start 0 --filter '^gtest/(passes|skips)'
expect_not 'base/'
[[ $(tail -n 1 "$output") == '2 passed, 0 failed, 1 skipped' ]] || fail 'another summary with a filter'

echo 'test leaves_something 30 bin/leaves_something' >>"$folder/entries"
start 0 --filter leaves_something
timeout 30 tail --pid="$(<"$PID_FILE")" -f /dev/null || fail 'something is left'

# Two tests that each end when the other has begun, and a bench that begins when both are done.
program meets <<'SCRIPT'
touch "$MEETING/$1.begun"
until [[ -e $MEETING/$2.begun ]]; do sleep 0.01; done
touch "$MEETING/$1.done"
SCRIPT
program comes_after <<<'[[ -e $MEETING/a.done && -e $MEETING/b.done ]] && echo "had it alone"'
export MEETING=$TEST_TMPDIR/barrier
mkdir "$MEETING"
cat >>"$folder/entries" <<'ENTRIES'
test barrier/a 30 bin/meets a b
fault barrier/b 30 bin/meets b a
bench barrier/after 30 bin/comes_after
ENTRIES
start 0 --jobs 2 --filter barrier
expect '^had it alone$'
[[ $(tail -n 1 "$output") == '3 passed, 0 failed, 0 skipped' ]] || fail 'another summary of two jobs'
start 1 --jobs=3 --filter base/
[[ $(tail -n 1 "$output") == '2 passed, 2 failed, 1 skipped' ]] || fail 'another summary of three jobs'
start 2 --jobs none

start 0 --list --filter=hangs
[[ $(<"$output") == base/hangs ]] || fail 'another list'

# Device tests alone, and none of a fault, twice each, and what the sanitizer finds is a failure.
mkdir "$folder/path"
cat >"$folder/path/compute-sanitizer" <<'SCRIPT'
#!/usr/bin/env bash
echo "sanitizer $*"
[[ $* != *racecheck*passes ]] || exit 99
SCRIPT
chmod +x "$folder/path/compute-sanitizer"
start 1 --sanitize --filter 'base/passes$|table'
expect '^PASS  memcheck:base/passes '
expect '^FAIL  racecheck:base/passes .* exit status 99$'
expect '^sanitizer .*--error-exitcode 99 .*--tool racecheck bin/passes$'
expect_not 'table'
[[ $(tail -n 1 "$output") == '1 passed, 1 failed, 0 skipped' ]] || fail 'another summary of sanitizers'
start 2 --sanitize --filter barrier/b
printf '#!/bin/sh\necho "========= Error: Device not supported. Please refer to the documentation"\nexit 1\n' \
  >"$folder/path/compute-sanitizer"
start 0 --sanitize --filter 'base/passes$'
expect '^SKIP  memcheck:base/passes .* compute-sanitizer does not support this device$'

start 2 --filter nothing
expect "no entry matches 'nothing'"
start 2 --sanitise
expect '^run \[--sanitize\]'
echo PASSED
