#!/usr/bin/env bash
# The program from end to end: ranks of its own, every collective, right results, exit statuses.
set -euo pipefail
collectives=$1
limits=$2
output=$TEST_TMPDIR/output
json=$TEST_TMPDIR/results.json
quick=(--iterations=2 --rounds=1 --warmup=1 --nopin)

fail() {
  echo "$1" >&2
  cat "$output" >&2
  exit 1
}

every=(all_reduce broadcast reduce all_gather reduce_scatter barrier gather scatter all_to_all send_receive)

expect_tables() { # names
  local name
  grep -q '^# wrong elements: 0 OK$' "$output" || fail "no clean summary"
  for name in "$@"; do
    grep -q "^# $name\$" "$output" || fail "no table of $name"
  done
  [[ $(grep -c 'out-of-place' "$output") == $# ]] || fail "other tables than $*"
}

# Three ranks: sizes that do not divide among them, or are too small for it.
"$collectives" --nproc=3 --begin=4 --end=256K --factor=16 --json="$json" "${quick[@]}" >"$output" 2>&1 || fail "f32 sum failed"
expect_tables "${every[@]}"
for name in "${every[@]}"; do
  grep -q "\"collective\": \"$name\"" "$json" || fail "nothing about $name in the JSON file"
done

# Bandwidths are those of nccl-tests, and a line of the table says what the JSON file does.
python3 - "$output" "$json" <<'END' || fail "bandwidths are wrong, or table and JSON differ"
import json, sys
lines = [line.split() for line in open(sys.argv[1])]
lines = [words for words in lines if len(words) == 13 and words[0].isdigit()]
rows = json.load(open(sys.argv[2]))['rows']
assert len(lines) == len(rows) > 0, (len(lines), len(rows))
bus = {'all_reduce': 4 / 3, 'broadcast': 1, 'reduce': 1, 'all_gather': 2 / 3, 'reduce_scatter': 2 / 3}  # of 3 ranks
for words, row in zip(lines, rows):
    assert words[:5] == [str(row[key]) for key in ('bytes', 'count', 'dtype', 'op', 'root')], (words, row)
    for place, cells in (('out_of_place', words[5:9]), ('in_place', words[9:])):
        found = row[place]
        if found is None:
            assert cells == ['-'] * 4, words
            continue
        algbw = row['bytes'] / found['time_us'] / 1e3
        assert abs(found['algbw_gbps'] - algbw) <= 1e-9 + 1e-6 * algbw, row
        if row['collective'] in bus:
            assert abs(found['busbw_gbps'] - algbw * bus[row['collective']]) <= 1e-9 + 1e-6 * algbw, row
        assert abs(float(cells[0]) - found['time_us']) <= 0.006 * max(1, found['time_us']), (words, row)
        assert cells[1:] == ['%.2f' % found['algbw_gbps'], '%.2f' % found['busbw_gbps'], str(found['wrong'])], (words, row)
END

# In memory that the ranks share, nothing is carried.
LOCKSTEP_TRANSPORT=shm "$collectives" --nproc=3 --symmetric --begin=4 --end=256K --factor=16 "${quick[@]}" >"$output" 2>&1 ||
  fail "symmetric memory failed"
grep -q '^# wrong elements: 0 OK$' "$output" || fail "no clean summary in symmetric memory"

LOCKSTEP_TRANSPORT=tcp "$collectives" --collective=all_reduce --dtype=f16 --algorithm=ring --begin=2K --end=512K --factor=256 \
  "${quick[@]}" >"$output" 2>&1 || fail "f16 over TCP failed"
[[ $(grep -c ' f16 ' "$output") == 2 ]] || fail "expected two rows"
grep -q '^# transport: tcp 127' "$output" || fail "the transport is not told"

# Beside bare sockets.
"$limits" --sizes=8,256K,25M --rounds=1 --round_ms=1 --json="$json" >"$output" 2>&1 || fail "the comparison failed"
grep -q "^# transport: tcp 127" "$output" || fail "the transport is not told"
grep -q "beside bare sockets, congestion control reno," "$output" || fail "the limit is not told"
spread='[0-9.]+ - [0-9.]+'
grep -qE "^ +262144( +[0-9.]+){3} +$spread( +[0-9.]+){2} +$spread +[0-9.]+ +([0-9]+|-)\$" "$output" || fail "no row of 256 KiB"
[[ $(grep -c '^ *26214400 ' "$output") == 2 ]] || fail "no comparison at 25 MiB"
grep -q '"both_ways_us"' "$json" || fail "nothing in the JSON file"

# Wrong usage is told before any rank starts.
status=0
"$collectives" --collective=allreduce >"$output" 2>&1 || status=$?
[[ $status == 2 ]] && grep -q "no collective 'allreduce'" "$output" || fail "unknown collective: exit status $status"
