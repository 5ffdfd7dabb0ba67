#!/usr/bin/env bash
# Installs into a fresh prefix, then builds and runs the C99 example from it with plain cc and pkg-config, and with CMake where
# there is one.
set -euo pipefail
work=$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")
prefix=$work/prefix
example=$PWD/examples/c99/two_ranks.c

./install "$prefix"
[[ $(readlink "$prefix/lib/liblockstep.so") == liblockstep.so.1 ]] || { echo 'FAILED: links'; exit 1; }

if command -v pkg-config >/dev/null; then
  read -r -a flags <<<"$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs lockstep)"
else
  flags=(-I"$prefix/include" -L"$prefix/lib" -llockstep)
fi
cc -std=c99 -pedantic -Wall -Wextra -Werror "$example" "${flags[@]}" -Wl,-rpath,"$prefix/lib" -o "$work/two_ranks"
# Not through a pipe: grep -q ends at the first match, and ldd would be told so by a signal.
needed=$(ldd "$work/two_ranks")
grep -q "$prefix/lib/libabsl_status" <<<"$needed" || { echo 'FAILED: Abseil is not taken from the prefix'; exit 1; }
timeout 60 "$work/two_ranks" | tee "$work/output"
grep -q 'rank 0 of 2: weight gradient 1.5, bias gradient 15' "$work/output"
grep -q 'rank 1 of 2: weight gradient 1.5, bias gradient 15' "$work/output"

# The header by itself, in both languages.
echo '#include <lockstep.h>' | cc -std=c99 -pedantic -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only -x c -
echo '#include <lockstep.h>' | c++ -std=c++17 -pedantic -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only -x c++ -

if command -v cmake >/dev/null; then
  mkdir "$work/cmake"
  cat >"$work/cmake/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.10)
project(example C)
find_package(lockstep 0.2 REQUIRED)
add_executable(two_ranks $example)
target_link_libraries(two_ranks lockstep::lockstep)
CMAKE
  cmake -S "$work/cmake" -B "$work/cmake/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" 2>&1 &&
    cmake --build "$work/cmake/build" >>"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; exit 1; }
  timeout 60 "$work/cmake/build/two_ranks"
fi
echo PASSED
