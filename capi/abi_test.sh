#!/usr/bin/env bash
# The symbols that liblockstep.so exports equal the checked-in list; their version, its SONAME and flags are what docs/c_abi.md
# says; loading it starts no thread.
set -euo pipefail
library=capi/liblockstep.so
want=capi/exported_symbols.txt

got=$(mktemp -p "${TEST_TMPDIR:-/tmp}")
nm -D --defined-only --with-symbol-versions "$library" | awk '$2 == "T" {print $3}' | sort -u >"$got"
if ! diff <(sed 's/$/@@LOCKSTEP_1/' "$want" | sort -u) "$got"; then
  echo "FAILED: exported symbols (>) differ from $want (<)"
  exit 1
fi
others=$(nm -D --defined-only "$library" | awk '$2 != "T" && $2 != "A" {print}')
if [[ -n $others ]]; then
  echo "FAILED: exported besides functions: $others"
  exit 1
fi
# Not through a pipe: grep -q ends at the first match, and readelf would be told so by a signal.
dynamic=$(readelf -d "$library")
grep -q 'SONAME.*\[liblockstep.so.1\]' <<<"$dynamic" || { echo 'FAILED: SONAME'; exit 1; }
grep -q 'NODELETE' <<<"$dynamic" || { echo 'FAILED: not marked nodelete'; exit 1; }

program=$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")
cat >"$program/load.c" <<'C'
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char** argv) {
  int threads = 0;
  DIR* tasks;
  struct dirent* entry;
  int (*version)(void);
  void* library = dlopen(argv[1], RTLD_NOW);
  if (argc != 2 || library == NULL) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  *(void**)&version = dlsym(library, "lockstep_version");
  if (version == NULL || version() <= 0) return 2;
  tasks = opendir("/proc/self/task");
  while ((entry = readdir(tasks)) != NULL) threads += entry->d_name[0] != '.';
  if (threads != 1) { fprintf(stderr, "%d threads after loading\n", threads); return 3; }
  return 0;
}
C
cc -o "$program/load" "$program/load.c" -ldl
"$program/load" "$PWD/$library" || { echo 'FAILED: loading'; exit 1; }
echo 'PASSED'
