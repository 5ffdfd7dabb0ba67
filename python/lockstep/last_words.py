"""An exception that ends this program, for its launcher: written to the file that TORCHELASTIC_ERROR_FILE names, which lockstep-run and
torchrun set (docs/wire_formats.md, "Error file"). lockstep-run prints the traceback of the rank that failed first and a line for each
other rank, so that nothing is printed here under it.
"""

import contextlib
import json
import os
import re
import sys
import time
import traceback

from lockstep.errors import utf8

# torchrun takes the earliest time as the root cause. See comm/record/failure_report.cc.
_VICTIM_SECONDS = 30
# The most characters of the traceback, and of the message: JSON takes at most 6 bytes for each, and lockstep-run reads 1 MiB.
_CHARACTERS_MAX = 80_000


def _read(path):
    try:
        with open(path, encoding='utf-8') as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _chain(error):
    """The exception, its cause or context, and so on."""
    chain = []
    while error is not None and all(error is not each for each in chain):
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def blamed(error, noted):
    """The rank that the exception blames, or None. `noted`: what the library wrote when a communicator failed, and its rank counts, since
    ranks of a process group have their own numbers. The exceptions of a framework name the rank in their text only."""
    first = noted.get('failed_rank')
    for each in _chain(error):
        rank = getattr(each, 'failed_rank', None)
        if isinstance(rank, int):
            return rank if first is None else first
        if first is not None and re.search(rf'\brank {first}\b', str(each)):
            return first
    return None


def _own_place():
    """This rank and the size of its world, as the launcher set them."""
    for prefix in ('LOCKSTEP_', ''):
        try:
            return {'rank': int(os.environ[prefix + 'RANK']), 'world_size': int(os.environ[prefix + 'WORLD_SIZE'])}
        except (KeyError, ValueError):
            pass
    return {}


def _readable(text):
    """A text that the launcher can read: without half of a character, and its middle cut out if the file would be too long."""
    text = utf8(text).decode()
    cut = len(text) - _CHARACTERS_MAX
    return text if cut <= 0 else f'{text[:_CHARACTERS_MAX // 2]}\n[... {cut} characters ...]\n{text[-_CHARACTERS_MAX // 2:]}'


def write(path, error):
    """Writes the exception into the error file, in the place of what the library or torch's @record wrote there."""
    now = time.time_ns()
    found = _read(path)
    noted = found.get('lockstep', {})
    place = {**_own_place(), **{name: noted[name] for name in ('rank', 'world_size') if name in noted}}
    ours = {**place, 'pid': os.getpid(), 'time_ns': now}
    rank = blamed(error, noted)
    if rank is not None and rank != place.get('rank'):
        ours['failed_rank'] = rank
        if rank == noted.get('failed_rank') and 'launched_as' in noted:
            ours['launched_as'] = noted['launched_as']
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if not frame.filename.startswith(os.path.dirname(__file__) + os.sep)] or frames
    if frames:
        ours['where'] = _readable(f'{frames[-1].filename}:{frames[-1].lineno}')
    extra = {'py_callstack': _readable(''.join(traceback.format_exception(error))),
             'timestamp': str(now // 10**9 + (_VICTIM_SECONDS if 'failed_rank' in ours else 0))}
    message = {'message': _readable(traceback.format_exception_only(error)[-1].strip()), 'extraInfo': extra}
    with open(f'{path}.{os.getpid()}', 'w', encoding='utf-8') as file:
        json.dump({**found, 'message': message, 'lockstep': ours}, file)
    os.replace(file.name, path)


def _launcher_prints(path):
    # A process that the rank has started prints its traceback itself, since the rank may continue. Ranks lead process groups.
    folder = os.environ.get('LOCKSTEP_REPORT_FOLDER')
    return bool(folder) and os.path.dirname(path) == folder and os.getpid() == os.getpgrp()


def install():
    """Once, before torch.distributed puts its hook in front."""
    usual = sys.excepthook

    def write_or_print(kind, error, trace):
        path = os.environ.get('TORCHELASTIC_ERROR_FILE')
        written = False
        try:
            if path:
                write(path, error)
                written = True
        except Exception:  # it is printed here instead
            pass
        if kind is KeyboardInterrupt:
            # Python 3.13 forgets that it has to end by SIGINT when formatting a traceback runs a string. A string reminds it.
            with contextlib.suppress(KeyboardInterrupt):
                exec('raise KeyboardInterrupt')
        if not (written and _launcher_prints(path)):
            usual(kind, error, trace)
    if os.environ.get('TORCHELASTIC_ERROR_FILE'):
        sys.excepthook = write_or_print
