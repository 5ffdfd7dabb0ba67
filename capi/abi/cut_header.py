"""lockstep.h as an older library's: the last fields of every struct that says its size are missing.

  cut_header.py LOCKSTEP_H > CUT_H

What is missing of a struct makes it smaller: of a pair of 32-bit fields at its end both go, since one alone would leave its place as
padding.
"""

import re
import sys

WORD = re.compile(r"\b(int32_t|lockstep_(dtype|device_kind|reduce_op|averaging|compression|hook|collective_kind|report))\s+\w+$")


def cut(match):
    name = match.group(1)
    body = re.sub(r"/\*.*?\*/", "", match.group(2), flags=re.S)
    fields = [" ".join(field.split()) for field in body.split(";") if field.strip()]
    if fields[0] != "size_t struct_size":
        return match.group(0)
    words = 0
    while words < len(fields) and WORD.search(fields[-1 - words]):
        words += 1
    kept = fields[: -2 if words > 0 and words % 2 == 0 else -1]
    return "typedef struct %s {\n%s} %s;" % (name, "".join("  %s;\n" % field for field in kept), name)


header = open(sys.argv[1]).read()
cut_header, structs = re.subn(r"typedef struct (lockstep_\w+) \{(.*?)\n\} \1;", cut, header, flags=re.S)
if structs < 10:
    sys.exit("found only %d structs in %s" % (structs, sys.argv[1]))
sys.stdout.write(cut_header)
