"""Structs of options of lockstep.h, from keyword arguments."""

import functools
import os

from lockstep._native import ffi
from lockstep.errors import InvalidArgument


@functools.lru_cache(None)
def _fields(struct):
    """{name: type in C}"""
    return {name: field.type.cname for name, field in ffi.typeof(struct).fields if name != 'struct_size'}


def check_names(struct, given, hidden=frozenset()):
    """ERRORS  InvalidArgument names an option that is no field of the struct, or a hidden one, and the options that there are"""
    known = _fields(struct).keys() - hidden
    for name in given:
        if name not in known:
            raise InvalidArgument(f'no option {name}; there are {", ".join(sorted(known))}')


def fill(struct, given, kept=None):
    """A pointer to a new `struct` with the given fields. Those that are None or not given have their default. It keeps what its fields
    point to, and `kept`.

    ERRORS  InvalidArgument as of check_names; TypeError and OverflowError name the option
    """
    fields, made, borrowed = _fields(struct), ffi.new(struct + '*'), [kept]
    made.struct_size = ffi.sizeof(struct)
    check_names(struct, given)
    for name, value in given.items():
        if value is None:
            continue
        try:
            if fields[name] == 'char *':
                value = ffi.new('char[]', os.fsencode(value))
            borrowed.append(value)
            setattr(made, name, value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f'option {name}: {error}') from None
    return ffi.gc(made, lambda _, borrowed=borrowed: None)
