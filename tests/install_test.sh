#!/usr/bin/env bash
# Installs into a fresh prefix and moves it, then builds and runs the C99 example from it with plain cc and pkg-config, and with CMake
# where there is one: here, and again in a mount namespace in which the machine has no Abseil, where that is permitted.
set -euo pipefail
work=$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")
example=$PWD/examples/c99/two_ranks.c

./install "$work/first"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
[[ $(readlink "$prefix/lib/liblockstep.so") == liblockstep.so.1 ]] || { echo 'FAILED: links'; exit 1; }
if grep -rIl "$work/first" "$prefix"; then echo 'FAILED: these know where they were installed'; exit 1; fi
version=$(awk '/^#define LOCKSTEP_VERSION_(MAJOR|MINOR|PATCH)/ {printf "%s%s", dot, $3; dot = "."}' "$prefix/include/lockstep.h")
for file in pkgconfig/lockstep.pc cmake/lockstep/lockstep-config-version.cmake; do
  grep -qE "(Version:|PACKAGE_VERSION) \"?$version" "$prefix/lib/$file" || { echo "FAILED: $file has another version than lockstep.h"; exit 1; }
done

# What a user does. Arguments: a folder for what is built.
cat >"$work/use" <<USE
set -euo pipefail
fail() { echo "FAILED: \$1"; exit 1; }
out=\$1
mkdir "\$out"
cd "\$out"
if command -v pkg-config >/dev/null; then
  read -r -a flags <<<"\$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs lockstep)"
else
  flags=(-I$prefix/include -L$prefix/lib -llockstep -Wl,-rpath-link,$prefix/lib/lockstep)
fi
cc -std=c99 -pedantic -Wall -Wextra -Werror $example "\${flags[@]}" -Wl,-rpath,$prefix/lib -o two_ranks
# Not through a pipe: grep -q ends at the first match, and ldd would be told so by a signal.
needed=\$(ldd two_ranks $prefix/bin/lockstep-run)
if grep libabsl_ <<<"\$needed" | grep -v "=> $prefix/"; then fail 'Abseil is not taken from the prefix'; fi
timeout 60 ./two_ranks | tee output
grep -q 'rank 0 of 2: weight gradient 1.5, bias gradient 15' output
grep -q 'rank 1 of 2: weight gradient 1.5, bias gradient 15' output

# As bindings come to it: by dlopen, from a program that has a path of its own for its libraries.
cat >loads.c <<'LOADS'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char** argv) {
  void* library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL || dlsym(library, "lockstep_version") == NULL) return puts(dlerror()), 1;
  return 0;
}
LOADS
cc loads.c -Wl,--enable-new-dtags,-rpath,/nowhere -ldl -o loads
./loads $prefix/lib/liblockstep.so || fail 'dlopen'
[[ \$(timeout 60 $prefix/bin/lockstep-run -n 2 sh -c 'echo of \$LOCKSTEP_WORLD_SIZE' | grep -c 'of 2\$') == 2 ]] || fail 'lockstep-run'

if command -v cmake >/dev/null; then
  cat >CMakeLists.txt <<CMAKE
cmake_minimum_required(VERSION 3.10)
project(example C)
find_package(lockstep 0.3 REQUIRED)
add_executable(two_ranks $example)
target_link_libraries(two_ranks lockstep::lockstep)
CMAKE
  cmake -S . -B build -DCMAKE_PREFIX_PATH=$prefix >cmake.log 2>&1 && cmake --build build >>cmake.log 2>&1 || { cat cmake.log; exit 1; }
  timeout 60 build/two_ranks
fi
USE
bash "$work/use" "$work/here"

# The same where the loader's folder has everything but Abseil: links to what is there, over what is there.
cat >"$work/without_abseil" <<WITHOUT
set -euo pipefail
real=$work/real links=$work/links
libraries=\$(dirname "\$(ldconfig -p | awk '/libabsl_status\.so/ {print \$NF; exit}')")
libraries=\$(realpath "\$libraries")
mkdir "\$real" "\$links"
mount --bind "\$libraries" "\$real"
find "\$real" -mindepth 1 -maxdepth 1 ! -name 'libabsl_*' -exec ln -s -t "\$links" {} +
mount --bind "\$links" "\$libraries"
if compgen -G "\$libraries/libabsl_*" >/dev/null; then echo 'FAILED: Abseil is still there'; exit 1; fi
bash $work/use $work/there
WITHOUT
if unshare --mount --map-root-user mount --bind "$work" "$work" 2>"$work/why"; then
  unshare --mount --map-root-user bash "$work/without_abseil"
else
  echo "SKIPPED without Abseil, for want of a mount namespace: $(<"$work/why")"
fi

# The header by itself, in both languages.
echo '#include <lockstep.h>' | cc -std=c99 -pedantic -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only -x c -
echo '#include <lockstep.h>' | c++ -std=c++17 -pedantic -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only -x c++ -
echo PASSED
