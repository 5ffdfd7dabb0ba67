#!/usr/bin/env bash
# resources_test.sh CUDA_HOME OBJECT...: no kernel may use memory of its threads' own, which is where registers that do not
# suffice are spilled to and where arrays go that are indexed at run time; and there are some for each architecture. Prints the kernels' registers and stack by kind and
# architecture. Skips where there are no objects of nvcc's, or no cuobjdump (of the toolkit, or in the PATH), and says so.
set -euo pipefail
home=$1
shift

if (($# == 0)); then
  echo "SKIPPED: built without nvcc"
  exit 0
fi
cuobjdump=$home/bin/cuobjdump
[[ -x $cuobjdump ]] || cuobjdump=$(command -v cuobjdump) || {
  echo "SKIPPED: no cuobjdump in $home/bin or the PATH"
  exit 0
}

for object in "$@"; do "$cuobjdump" --dump-resource-usage "$object"; done | awk '
  # A template of bodies in its mangled name: RunBodyINS2_8TransferINS2_3F64E...
  function kind_of(name) {
    if (!match(name, /RunBodyINS[0-9A-Z]*_[0-9]+[A-Za-z]+I/)) return name
    kind = substr(name, RSTART, RLENGTH - 1)
    sub(/.*_[0-9]+/, "", kind)
    return kind
  }
  $1 == "arch" { architecture = $3 }
  $1 == "Function" { name = substr($2, 1, length($2) - 1) }
  match($0, /REG:[0-9]+ STACK:[0-9]+ SHARED:[0-9]+ LOCAL:[0-9]+/) {
    split(substr($0, RSTART, RLENGTH), fields, /[: ]/)
    registers = fields[2]
    own = fields[4] + fields[8]
    kind = kind_of(name)
    row = sprintf("%-20s %-8s", kind, architecture)
    seen[architecture] = 1
    ++count[row]
    if (!(row in least) || registers < least[row]) least[row] = registers
    if (registers > most[row]) most[row] = registers
    if (own > stack[row]) stack[row] = own
    if (own > 0) {
      printf "%s of %s has %d bytes of its own in memory\n", name, architecture, own
      failed = 1
    }
  }
  END {
    printf "%-20s %-8s %8s %14s %18s\n", "kernels", "for", "count", "registers", "bytes of stack"
    for (row in count) printf "%s %8d %8d to %2d %18d\n", row, count[row], least[row], most[row], stack[row] | "sort"
    close("sort")
    for (i = split("sm_80 sm_90 sm_100", wanted, " "); i > 0; --i) {
      if (wanted[i] in seen) continue
      print "no kernels for", wanted[i]
      failed = 1
    }
    exit failed
  }'
