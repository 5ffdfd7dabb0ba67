#!/usr/bin/env python3
"""build_native.py HEADER OUT: writes the C source of lockstep._native, the binding of lockstep.h, by cffi.

All of the header is bound: what the compiler checks against it is read from it here. Beside it the module has the functions that
C calls in Python, and one shortcut for the call that is made for each gradient.
"""

import re
import sys

import cffi

CALLED_FROM_C = '''
extern "Python" void lockstep_py_work_done(void* context, const lockstep_error* error);
extern "Python" void lockstep_py_hook_start(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                            lockstep_hook_completion* completion);
extern "Python" lockstep_error* lockstep_py_optimizer_step(void* context, const lockstep_reduced_bucket* bucket);
extern "Python" lockstep_error* lockstep_py_on_drift(void* context, lockstep_error* drift);
extern "Python" lockstep_code lockstep_py_store_set(void* context, const char* key, const void* value, size_t bytes, int64_t timeout_ms);
extern "Python" lockstep_code lockstep_py_store_get(void* context, const char* key, void* buffer, size_t capacity, size_t* out_bytes,
                                                    int64_t timeout_ms);
extern "Python" void lockstep_py_store_release(void* context);
extern "Python" lockstep_code lockstep_py_store_remove(void* context, const char* key, int64_t timeout_ms);
'''

# What is in a capsule "dltensor_versioned": DLPack's DLManagedTensorVersioned.
DLPACK = '''
typedef struct {
  uint32_t major, minor;
  void* manager;
  void* deleter;
  uint64_t flags;
  uint64_t tensor[6];
} lockstep_py_dlpack;
'''

SHORTCUTS = '''
lockstep_error* lockstep_py_mark_ready(lockstep_reducer* reducer, size_t index, lockstep_tensor* gradient, uintptr_t data);
'''

SOURCE = '''
#include "capi/lockstep.h"
''' + DLPACK + '''
/* The gradient's description stays as it is from step to step, but for its address. */
static lockstep_error* lockstep_py_mark_ready(lockstep_reducer* reducer, size_t index, lockstep_tensor* gradient, uintptr_t data) {
  gradient->data = (void*)data;
  return lockstep_reducer_mark_ready(reducer, index, gradient, NULL);
}
'''


def declarations(header):
    """The header's declarations, as cffi takes them: without comments, directives and attributes."""
    text = re.sub(r'/\*.*?\*/', '', header, flags=re.DOTALL)
    text = re.sub(r'\\\n', ' ', text)
    text = re.sub(r'#ifdef __cplusplus.*?#endif', '', text, flags=re.DOTALL)
    text = re.sub(r'^\s*#.*$', '', text, flags=re.MULTILINE)
    return text.replace('LOCKSTEP_EXPORT', '')


def main():
    header, out = sys.argv[1:]
    ffi = cffi.FFI()
    with open(header, encoding='ascii') as file:
        ffi.cdef(declarations(file.read()))
    ffi.cdef(DLPACK + SHORTCUTS)
    ffi.cdef(CALLED_FROM_C)
    ffi.set_source('lockstep._native', SOURCE, py_limited_api=True)
    ffi.emit_c_code(out)


if __name__ == '__main__':
    main()
