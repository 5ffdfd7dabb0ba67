"""python -m lockstep.run -n 4 script.py argument...: runs a Python script as the ranks of one world, on this host.

It is lockstep-run, whose options come first (python -m lockstep.run --help), with this interpreter for what is Python's: a script (.py,
.pyz), a folder with a __main__.py, or -m MODULE. Output is not buffered. Any other program is started as it is.

The launcher is the package's own, or what the variable LOCKSTEP_RUN names.
"""

import os
import signal
import subprocess
import sys

_WITH_VALUE = ('-n', '--nproc', '--threads', '--foreground', '--grace', '--store', '--job-id')


def launcher():
    """The path of lockstep-run."""
    found = os.environ.get('LOCKSTEP_RUN') or os.path.join(os.path.dirname(os.path.abspath(__file__)), '_lib', 'lockstep-run')
    if not os.access(found, os.X_OK):
        sys.exit(f'lockstep.run: no launcher at {found}; the variable LOCKSTEP_RUN may name another')
    return found


_HELP = '''usage: python -m lockstep.run -n N [option...] {script.py | -m MODULE | FOLDER | program} [argument...]

  script.py, .pyz     run this script with this interpreter, output unbuffered
  -m MODULE           run this module, as python -m does
  FOLDER              run the __main__.py in it
  program             run any other program as it is

The options, and all else, are those of lockstep-run:

'''


def _split(words):
    """Returns the launcher's options among the words, and the program with its arguments."""
    at = 0
    while at < len(words) and words[at].startswith('-') and words[at] not in ('-m', '--'):
        at += 2 if words[at] in _WITH_VALUE else 1
    return words[:at], words[at:]


def command(words):
    """Translates this module's command line into lockstep-run's."""
    options, program = _split(words)
    if program[:1] == ['--']:
        options.append(program.pop(0))
    if program and (program[0] == '-m' or program[0].endswith(('.py', '.pyz')) or os.path.isfile(os.path.join(program[0], '__main__.py'))):
        # What this interpreter was started with, such as -X and -W, holds for the ranks.
        program = [sys.executable, *subprocess._args_from_interpreter_flags(), '-u', *program]
        if options[-1:] != ['--']:
            options.append('--')
    return [launcher(), *options, *program]


def main():
    """Becomes the launcher."""
    words = command(sys.argv[1:])
    if not {'-h', '--help'}.isdisjoint(_split(sys.argv[1:])[0]):
        print(_HELP, end='', flush=True)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and not by a program that it becomes
        signal.signal(ignored, signal.SIG_DFL)
    os.execv(words[0], words)


if __name__ == '__main__':
    main()
