#!/usr/bin/env bash
# bazel run --config=release //:install -- DIR: lays down under DIR
#   bin/lockstep-run
#   include/lockstep.h
#   lib/liblockstep.so -> its SONAME -> liblockstep.so.VERSION
#   lib/lockstep/, the Abseil libraries that both need, if they are linked to any
#   lib/pkgconfig/lockstep.pc
#   lib/cmake/lockstep/lockstep-config.cmake, lockstep-config-version.cmake
# DIR may be moved elsewhere, also to another machine: it needs glibc and libstdc++ no older than here.
set -euo pipefail

if (($# != 1)) || [[ $1 == --help ]]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
# Bazel runs this in its runfiles; a relative DIR is meant where the user typed it.
prefix=$1
[[ $prefix == /* ]] || prefix=${BUILD_WORKING_DIRECTORY:-$PWD}/$prefix

header=capi/lockstep.h
library=capi/liblockstep.so
launcher=launch/lockstep-run
number() { awk -v name="LOCKSTEP_VERSION_$1" '$2 == name {print $3}' "$header"; }
major=$(number MAJOR)
version=$major.$(number MINOR).$(number PATCH)
soname=$(readelf -d "$library" | sed -n "s/.*SONAME.*\[\(.*\)\].*/\1/p")

put() { # mode, from, to
  rm -f "$3" && cp -L "$2" "$3" && chmod "$1" "$3"
}

mkdir -p "$prefix/bin" "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/lib/cmake/lockstep"
prefix=$(cd "$prefix" && pwd)
put 755 "$launcher" "$prefix/bin/lockstep-run"
put 644 "$header" "$prefix/include/lockstep.h"
put 755 "$library" "$prefix/lib/liblockstep.so.$version"
ln -sfn "liblockstep.so.$version" "$prefix/lib/$soname"
ln -sfn "$soname" "$prefix/lib/liblockstep.so"
ldd "$library" "$launcher" | awk '$1 ~ /^libabsl_/ {print $3}' | sort -u | while read -r needed; do
  mkdir -p "$prefix/lib/lockstep"
  put 644 "$needed" "$prefix/lib/lockstep/$(basename "$needed")"
done

# Who links against the library has its linker look at the libraries behind it: -rpath-link says where they are.
cat >"$prefix/lib/pkgconfig/lockstep.pc" <<PC
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: lockstep
Description: Gradient synchronisation for data-parallel training
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -llockstep -Wl,-rpath-link,\${libdir}/lockstep
PC

cat >"$prefix/lib/cmake/lockstep/lockstep-config.cmake" <<'CMAKE'
# find_package(lockstep) gives the target lockstep::lockstep.
get_filename_component(_lockstep_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET lockstep::lockstep)
  add_library(lockstep::lockstep SHARED IMPORTED)
  set_target_properties(lockstep::lockstep PROPERTIES
    IMPORTED_LOCATION "${_lockstep_prefix}/lib/liblockstep.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_lockstep_prefix}/include"
    INTERFACE_LINK_OPTIONS "-Wl,-rpath-link,${_lockstep_prefix}/lib/lockstep")
endif()
unset(_lockstep_prefix)
CMAKE
cat >"$prefix/lib/cmake/lockstep/lockstep-config-version.cmake" <<CMAKE
set(PACKAGE_VERSION "$version")
if("\${PACKAGE_FIND_VERSION_MAJOR}" STREQUAL "$(number MAJOR)" AND NOT "\${PACKAGE_FIND_VERSION}" VERSION_LESS 0.3 AND NOT "\${PACKAGE_FIND_VERSION}" VERSION_GREATER "$version")
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if("\${PACKAGE_FIND_VERSION}" VERSION_EQUAL "$version")
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
CMAKE
echo "installed Lockstep $version in $prefix"
