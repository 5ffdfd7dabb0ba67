#!/usr/bin/env bash
# cffi's parser takes the preprocessed header with nothing cut out, and what it makes of that calls the library.
#   bind_by_cffi_test.sh HEADER LIBRARY
set -euo pipefail
scratch=$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")
# The system's headers have attributes, too; they are no part of ours.
cc -E -P -DLOCKSTEP_EXPORT= '-D__attribute__(x)=' "$1" >"$scratch/lockstep.i"
exec /usr/bin/python3 - "$scratch/lockstep.i" "$PWD/$2" <<'PYTHON'
import sys

import cffi

ffi = cffi.FFI()
ffi.cdef(open(sys.argv[1]).read())
library = ffi.dlopen(sys.argv[2])

def check(error):
    if error != ffi.NULL:
        sys.exit("FAILED: " + ffi.string(library.lockstep_error_message(error)).decode())

handle = ffi.new("lockstep_communicator**")
options = ffi.new("lockstep_communicator_options*", {"struct_size": ffi.sizeof("lockstep_communicator_options")})
options.world_size = 1
check(library.lockstep_communicator_create(options, handle))
data, shape = ffi.new("float[3]", [1, 2, 3]), ffi.new("int64_t[1]", [3])
tensor = ffi.new("lockstep_tensor*", {"data": data, "shape": shape, "dimensions": 1, "dtype": library.LOCKSTEP_F32})
check(library.lockstep_all_reduce(handle[0], tensor, tensor, library.LOCKSTEP_AVG, ffi.NULL, ffi.NULL, ffi.NULL))
assert list(data) == [1, 2, 3]
error = library.lockstep_all_reduce(handle[0], tensor, ffi.NULL, library.LOCKSTEP_AVG, ffi.NULL, ffi.NULL, ffi.NULL)
assert library.lockstep_error_code(error) == library.LOCKSTEP_INVALID_ARGUMENT
library.lockstep_error_free(error)
library.lockstep_communicator_destroy(handle[0])
print("PASSED")
PYTHON
