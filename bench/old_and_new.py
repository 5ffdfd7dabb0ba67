#!/usr/bin/env python3
"""Compares two builds of one benchmark: bench/old_and_new.py OLD NEW [--rounds N] [-- ARGUMENTS].

Or two settings of one: OLD and NEW are commands, such as 'env LOCKSTEP_SECURITY=none PROGRAM'. In each round OLD, NEW and
OLD again run with the same arguments, so that a machine whose speed drifts changes all alike. A row is printed for each
time that the benchmark writes as JSON: the median over the rounds of NEW's time divided by the geometric mean of OLD's two,
with its quartiles; and of OLD's second time divided by its first, which is the noise of the machine. A row is marked where
NEW is slower than the noise explains: the quartiles of both lie apart.

Understands the programs of bench (--json; the form is in bench/report.h) and Google Benchmark's.
"""

import argparse
import json
import math
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile


def times(part, name=()):
    """The times in a row of a document, each with what identifies it. A spread stands for its median."""
    name += tuple(str(part[key]) for key in ('transport', 'collective', 'name', 'bytes') if key in part)
    for key, value in part.items():
        if key.endswith(('_us', '_ms')) or key == 'real_time':
            value = value['median'] if isinstance(value, dict) else value
            if isinstance(value, (int, float)) and value > 0:
                yield name + (key,), value
        elif isinstance(value, dict):
            yield from times(value, name + (key,))


def run(command, arguments):
    command = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, 'output.json')
        google = 'benchmark' in pathlib.Path(command[-1]).name
        flags = [f'--benchmark_out={output}', '--benchmark_out_format=json'] if google else [f'--json={output}']
        done = subprocess.run([*command, *arguments, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f'{shlex.join(command)}: exit status {done.returncode}\n{done.stderr}')
        document = json.loads(output.read_text())
        rows = document['benchmarks' if google else 'rows']
        return dict(found for row in rows if 'bucket' not in row for found in times(row))  # a bucket is measured once in a run


def quartiles(values):
    return statistics.quantiles(values, n=4, method='inclusive')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('old')
    parser.add_argument('new')
    parser.add_argument('--rounds', type=int, default=7)
    split = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
    flags = parser.parse_args(sys.argv[1:split])
    arguments = sys.argv[split + 1:]
    if flags.rounds < 2:
        parser.error('--rounds: at least 2')

    ratios, noises, typical = {}, {}, {}
    for _ in range(flags.rounds):
        before, new, after = (run(program, arguments) for program in (flags.old, flags.new, flags.old))
        for name in before.keys() & new.keys() & after.keys():
            ratios.setdefault(name, []).append(new[name] / math.sqrt(before[name] * after[name]))
            noises.setdefault(name, []).append(after[name] / before[name])
            typical.setdefault(name, []).append(new[name])

    print(f'# {flags.rounds} rounds of old, new, old; arguments: {" ".join(arguments)}')
    print(f'{"time of":70} {"new":>12} {"new / old":>10} {"quartiles":>15} {"old / old":>10} {"quartiles":>15}')
    for name in sorted(ratios):
        if len(ratios[name]) < flags.rounds:
            continue
        low, median, high = quartiles(ratios[name])
        noise_low, noise, noise_high = quartiles(noises[name])
        slower = '  slower' if low > max(noise_high, 1 / noise_low) else ''
        print(f'{" ".join(name):70} {statistics.median(typical[name]):12.4g} {median:10.3f} {low:7.3f}-{high:7.3f} '
              f'{noise:10.3f} {noise_low:7.3f}-{noise_high:7.3f}{slower}')


if __name__ == '__main__':
    main()
