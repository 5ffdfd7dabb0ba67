#!/usr/bin/env bash
# Clients built against the headers of other versions run with today's shared library; 0.1's are refused by the loader.
#   abi_clients_test.sh CLIENT_C LIBRARY HEADER...
set -euo pipefail
client=$1 library=$PWD/$2
shift 2
scratch=$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")
folder=$(dirname "$library")
# What the loader looks for; beside it the libraries that it needs.
mkdir "$scratch/lib"
ln -s "$library" "$scratch/lib/liblockstep.so.1"

for header in "$@"; do
  cut=()
  [[ $header == *_cut.h ]] && cut=(-DLOCKSTEP_CUT_HEADER)
  cc -std=c99 -pedantic -Wall -Wextra -Werror -O1 -fstack-protector-all "${cut[@]}" "-DLOCKSTEP_HEADER=\"$PWD/$header\"" \
    "$client" -o "$scratch/client" -L"$scratch/lib" -l:liblockstep.so.1 -Wl,--allow-shlib-undefined -lpthread
  LD_LIBRARY_PATH="$scratch/lib:$folder" "$scratch/client" || { echo "FAILED: a client of $header"; exit 1; }
done

# A client of 0.1 asks for liblockstep.so.0.
mkdir "$scratch/old"
echo 'int lockstep_version(void) { return 100; }' >"$scratch/old.c"
cc -shared -fPIC -Wl,-soname,liblockstep.so.0 "$scratch/old.c" -o "$scratch/old/liblockstep.so.0"
echo 'int lockstep_version(void); int main(void) { return lockstep_version() != 100; }' >"$scratch/old_client.c"
cc "$scratch/old_client.c" -o "$scratch/old_client" -L"$scratch/old" -l:liblockstep.so.0
LD_LIBRARY_PATH="$scratch/old" "$scratch/old_client" || { echo 'FAILED: the test itself'; exit 1; }
if refusal=$(LD_LIBRARY_PATH="$scratch/lib:$folder" "$scratch/old_client" 2>&1); then
  echo 'FAILED: a client of 0.1 was not refused'
  exit 1
fi
[[ $refusal == *liblockstep.so.0:\ cannot\ open* ]] || { echo "FAILED: refused otherwise: $refusal"; exit 1; }
echo 'PASSED'
