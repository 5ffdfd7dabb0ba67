#!/usr/bin/env python3
"""All-reduce of Lockstep beside prototypes of what the machine can do and beside the peers that are installed, in turn round by round,
over shared memory, TCP and libfabric: medians, and the ratios of each round.

A comparison is of implementations over one transport. All of them are started first and stay until the end; one that is not measured
sleeps. At each size every one is checked, tells how many calls fill a round, and then each round measures all of them, beginning with
another one each time, so that what the machine does meanwhile meets all alike. One that is wrong, dies or does not answer in time is
ended and takes no further part; the others go on.

Exits with 0 when Lockstep went through every comparison; with 1 when it was dropped from one, and when a file could not be written; with
2 for options that do not go together.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True  # beside the sources

import implementations
import report
import runners

INT_MAX = 2**31 - 1
PATIENCE_MAX_S = 300  # LOCKSTEP_RUNNER_PATIENCE_S
START_PATIENCE_S = 60
QUIT_PATIENCE_S = 5
CALLS_MAX = 100_000
FIRST_CALLS = 3
CARRIED_BYTES = 1 << 20  # over one connection: it carries the vectors


def tell(text):
    print(f'compare: {text}', file=sys.stderr, flush=True)


class Compared:
    """Runs the implementations of one comparison."""

    def __init__(self, options, transport, folder, compared):
        self.options, self.transport, self.folder = options, transport, folder
        self.implementations = compared
        self.results = [report.Result(one.name, one.kind, one.about) for one in compared]
        self.groups = [None] * len(compared)  # None: takes no part any more

    def run(self):
        everyone = range(len(self.implementations))
        try:
            for i in everyone:
                self.start(i)
            for size in self.options.sizes:
                self.tell(f'{size} bytes')
                for i in everyone:
                    self.step(i, size, '', self.prepare)
                for turn in range(self.options.rounds):
                    for i in everyone:
                        self.step((i + turn) % len(everyone), size, f' in round {turn + 1}', self.measure)
            for i in everyone:
                self.finish(i)
        finally:
            for group in filter(None, self.groups):
                group.close()
        return report.Comparison(self.transport, self.options.nproc, self.options.sizes, self.results)

    def tell(self, text):
        tell(f'{self.transport}: {text}')

    def patience(self):
        return runners.after(self.options.patience_s)

    def drop(self, i, when, why):
        if self.groups[i]:
            self.groups[i].close()
        self.groups[i] = None
        self.results[i].dropped = f'{when}: {why}'
        self.tell(f'{self.results[i].name} is out, {self.results[i].dropped}')

    def largest(self, i):
        return max((size.bytes for size in self.options.sizes if size.bytes <= self.implementations[i].bytes_max), default=4)

    def start(self, i):
        one = self.implementations[i]
        self.tell(f'starting {one.name}')
        try:
            self.groups[i] = runners.RunnerGroup(one, self.options.nproc, self.largest(i), pathlib.Path(self.folder, str(i)),
                                                 runners.after(self.options.start_patience_s))
        except runners.RunnerError as error:
            self.drop(i, 'at its start', error)

    def step(self, i, size, when, action):
        if self.groups[i] is None or size.bytes > self.implementations[i].bytes_max:
            return
        try:
            action(i, size)
        except runners.RunnerError as error:
            self.drop(i, f'at {size}{when}', error)

    def prepare(self, i, size):
        """Checks its sums, and finds the number of calls that fill a round."""
        group = self.groups[i]
        if not self.implementations[i].moves_only:
            wrong = group.check(size, self.patience())
            if wrong > 0:
                raise runners.RunnerError(f'{wrong} elements are wrong')
        # A few calls alone are far from what many back to back come to, so the second estimate is made from more.
        calls = FIRST_CALLS
        for part in (10, 1):
            fitting = self.options.round_ms / 1e3 / part / max(group.run(size, calls, self.patience())[1], 1e-9)
            calls = int(min(max(fitting, 1), CALLS_MAX))
            if fitting < 1:
                break
        self.results[i].calls[size] = calls

    def measure(self, i, size):
        seconds = self.groups[i].run(size, self.results[i].calls[size], self.patience())[0]
        # Below the clock's own cost there is nothing to tell; and a ratio needs something to divide by.
        self.results[i].rounds.setdefault(size, []).append(max(seconds, 1e-9))

    def finish(self, i):
        group = self.groups[i]
        if group is None:
            return
        try:
            control, sent = group.sockets(self.patience())
            # Launchers and control channels have connections too, but they carry little.
            self.results[i].congestion_control = control if sent >= min(self.largest(i) // 2, CARRIED_BYTES) else 'none'
            group.quit(runners.after(QUIT_PATIENCE_S))
        except runners.RunnerError as error:
            self.tell(f'{self.results[i].name} did not end well: {error}')
        group.close()
        self.groups[i] = None


def sizes_in(text):
    try:
        return sorted(map(report.Size.parse, text.split(',')))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def names_in(what, known, *shortcuts):
    def parse(text):
        if text in shortcuts:
            return list(known) if text == 'all' else []
        for name in text.split(','):
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {what} '{name}'; known are {', '.join((*shortcuts, *known))}")
        return list(dict.fromkeys(text.split(',')))
    return parse


def parse_options(words):
    parser = argparse.ArgumentParser(prog='compare', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    add = parser.add_argument
    add('--nproc', type=int, default=2, help='ranks of each implementation')
    add('--peers', type=names_in('peer', implementations.PEERS, 'all', 'none'), default='all',
        help='all, none, or some of gloo, openmpi, mpich, pytorch with commas between')
    add('--transports', type=names_in('transport', report.TRANSPORTS), default='shm,tcp', help='one comparison for each: shm, tcp, ofi')
    add('--sizes', type=sizes_in, default='8,8again,1K,8K,64K,256K,1M,4M,16M,25M,64M',
        help='of the vector; K, M and G are powers of 1024; 8again: the same vector in every call, not rewritten before each')
    add('--rounds', type=int, default=15, help='in each of which every implementation is measured once')
    add('--round_ms', type=int, default=20, help='how long one is measured in a round')
    add('--patience_s', type=float, default=30, help='one that does not answer for so long is dropped')
    add('--json', default='', help='also write the results, every round of them, to this file')
    options = parser.parse_args(words)
    options.start_patience_s = START_PATIENCE_S
    if not 2 <= options.nproc <= runners.RANKS_MAX:
        parser.error(f'{options.nproc} ranks cannot be compared; 2 to {runners.RANKS_MAX} can')
    if options.rounds < 1 or options.round_ms < 1:
        parser.error('there must be a round at least, of a millisecond')
    if not options.round_ms / 500 <= options.patience_s < PATIENCE_MAX_S:
        parser.error(f'patience is below {PATIENCE_MAX_S} s, and a round shorter than half of it')
    for size in options.sizes:
        if size.bytes < 4 or size.bytes % 4 != 0 or size.bytes // 4 > INT_MAX:
            parser.error(f'{size} bytes are no vector of 1 to {INT_MAX} floats')
    return options


def find_peers(options, folder, facts, missing):
    """Those that are there; the others are told about in `missing`."""
    found = []
    sources = pathlib.Path(__file__).resolve().parent
    for name in options.peers:
        tell(f'looking for {name}')
        try:
            peer = implementations.find_peer(name, sources, folder)
        except implementations.NotInstalled as error:
            missing.append(f'{name} is not installed ({error}): {implementations.how_to_install(name)}')
        except implementations.DoesNotWork as error:
            missing.append(f'{name} does not work ({error})')
        else:
            facts[name] = peer.version
            found.append(peer)
    return found


def compare(options, scratch):
    """Whether Lockstep went through."""
    runner = runners.find_program('bench/compare/runner')
    facts = dict(line.split(': ', 1) for line in implementations.output_of([runner, 'facts']).splitlines())
    missing = []
    peers = find_peers(options, scratch, facts, missing)
    facts['ranks'] = f'{options.nproc}, each kept on one core, by turns'
    facts['rounds'] = f'{options.rounds} of {options.round_ms} ms for each implementation in turn'
    print(report.facts_text(facts) + ''.join(f'# {text}\n' for text in missing), end='', flush=True)
    comparisons = []
    for transport in options.transports:
        folder = pathlib.Path(scratch, transport)
        folder.mkdir()
        compared = implementations.lockstep(runners.find_program('bench/compare/lockstep_runner'), transport)
        compared += implementations.limits(runner, transport, options.nproc)
        if transport != 'ofi':  # for which no peer is set up
            for peer in peers:
                compared += implementations.peers(peer, transport, options.nproc)
        comparisons.append(Compared(options, transport, folder, compared).run())
        print(report.table(comparisons[-1]), end='', flush=True)
    if options.json:
        # A relative path counts from the folder in which the user called `bazel run`, which changes it.
        path = pathlib.Path(os.environ.get('BUILD_WORKING_DIRECTORY', ''), options.json)
        path.write_text(json.dumps(report.to_json(facts, comparisons), indent=2) + '\n', encoding='utf-8', errors='replace')
    return not any(result.dropped for done in comparisons for result in done.results if result.kind == 'lockstep')


def main():
    options = parse_options(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix='compare-') as scratch:
        try:
            return 0 if compare(options, scratch) else 1
        except (OSError, implementations.DoesNotWork) as error:
            tell(str(error))
            return 1


if __name__ == '__main__':
    sys.exit(main())
