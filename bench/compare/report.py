"""What comparisons have found out: as tables for people, and as JSON for scripts."""

import dataclasses
import statistics

TRANSPORTS = {'shm': 'shared memory', 'tcp': 'TCP', 'ofi': 'libfabric'}
UNITS = 'KMGT'
AGAIN = 'again'


@dataclasses.dataclass(frozen=True, order=True)
class Size:
    """Of the vectors in a row."""
    bytes: int
    again: bool = False  # the same vector in every call; else it is rewritten before each

    @classmethod
    def parse(cls, text):
        """64K -> 65536 bytes: units are powers of 1024; 8again -> the same 8 bytes again and again. ValueError for what is no size."""
        number = text.removesuffix(AGAIN)
        unit = UNITS.find(number[-1:].upper()) + 1 if number else 0
        digits = number[:-1] if unit else number
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"size '{text}' is not a number of bytes with K, M, G or T, and '{AGAIN}', behind it at most")
        return cls(int(digits) << 10 * unit, number != text)

    def __str__(self):
        """The shortest that parse reads back."""
        number, unit = self.bytes, 0
        while number >= 1024 and number % 1024 == 0 and unit < len(UNITS):
            number, unit = number // 1024, unit + 1
        return f'{number}{UNITS[unit - 1] if unit else ""}{AGAIN if self.again else ""}'


@dataclasses.dataclass
class Result:
    """Of one implementation."""
    name: str
    kind: str
    about: str = ''
    congestion_control: str = ''  # of the TCP connection that sent most; "none" without TCP; empty: not found out
    dropped: str = ''  # when and why; empty when it went through
    calls: dict = dataclasses.field(default_factory=dict)  # in a round, by size
    rounds: dict = dataclasses.field(default_factory=dict)  # seconds of one call, by size and round; shorter when it was dropped

    def median(self, size):
        """None where it has no times."""
        return statistics.median(self.rounds[size]) if self.rounds.get(size) else None


@dataclasses.dataclass
class Comparison:
    transport: str
    ranks: int
    sizes: list
    results: list

    def fastest_peer(self, size):
        peers = [result for result in self.results if result.kind == 'peer' and result.median(size) is not None]
        return min(peers, key=lambda result: result.median(size), default=None)


def quartiles(values):
    """Low, median and high; between two measurements, linearly."""
    return statistics.quantiles(values, n=4, method='inclusive') if len(values) > 1 else [values[0]] * 3


def ratio(result, other, size):
    """Quartiles of the times of one by those of the other, round by round; below 1 it is faster. None where either has no times."""
    pairs = list(zip(result.rounds.get(size, ()), other.rounds.get(size, ())))
    return quartiles([own / others for own, others in pairs]) if pairs else None


def time_text(seconds):
    us = 1e6 * seconds
    return f'{us:.0f}' if us >= 10_000 else f'{us:.1f}' if us >= 100 else f'{us:.2f}'


def facts_text(facts):
    return ''.join(f'# {name}: {value}\n' for name, value in facts.items())


def grid(sizes, width, results, cell):
    """A row for each size, with a cell for each result. Every line but the rows begins with "#"."""
    lines = ['#' + f'{"size":>9}' + ''.join(f'  {result.name:>{width}}' for result in results)]
    for size in sizes:
        lines.append(f'{str(size):>10}' + ''.join(f'  {cell(result, size):>{width}}' for result in results))
    return '\n'.join(lines) + '\n'


def table(comparison):
    """Who took part and how, who was dropped and why; the medians; and for each kind of Lockstep that has times its ratios to all others,
    the fastest peer of the row marked with a star."""
    results = comparison.results
    rounds = max((len(seconds) for result in results for seconds in result.rounds.values()), default=0)
    text = (f'#\n# {TRANSPORTS[comparison.transport]}, {comparison.ranks} ranks: all_reduce, f32 sum in place. Calls are timed one by one, '
            f'each on a vector just rewritten ({AGAIN}: together, on the same vector); time of the slowest rank, '
            f'median of {rounds} rounds.\n')
    for result in results:
        kind = '' if result.kind == 'lockstep' else f'{result.kind}: '
        sockets = result.congestion_control not in ('', 'none')
        text += f'#   {result.name:14} {kind}{result.about}'
        text += f'; its connections used {result.congestion_control}\n' if sockets else '\n'
    text += ''.join(f'# dropped: {result.name} {result.dropped}\n' for result in results if result.dropped)

    def time_cell(result, size):
        seconds = result.median(size)
        return '-' if seconds is None else time_text(seconds)
    text += '#\n# time (us)\n' + grid(comparison.sizes, 14, results, time_cell)

    for ours in results:
        if ours.kind != 'lockstep' or not any(ours.rounds.values()):
            continue

        def ratio_cell(other, size, ours=ours):
            found = ratio(ours, other, size)
            star = '*' if other is comparison.fastest_peer(size) else ' '
            return f'{found[1]:.2f} [{found[0]:.2f}-{found[2]:.2f}]{star}' if found else '- '
        text += (f'#\n# time of {ours.name} / time of the other in the same round: median [quartiles]; below 1 {ours.name} is faster; '
                 f'* the fastest peer\n') + grid(comparison.sizes, 20, [result for result in results if result is not ours], ratio_cell)
    return text


def to_json(facts, comparisons):
    """The form of bench/report.h, with every round, so that other statistics can be made:
    {"facts": {"cpu": ..., ...},
     "rows": [{"transport": "tcp", "ranks": 2, "name": "lockstep", "bytes": 8, "again": false, "calls": 1000,
               "time_us": {"low": ..., "median": ..., "high": ...}, "rounds_us": [7.0, 7.1, ...]}]}
    A size that was not measured has no row."""
    def row(comparison, result, size):
        rounds_us = [1e6 * seconds for seconds in result.rounds[size]]
        return {'transport': comparison.transport, 'ranks': comparison.ranks, 'name': result.name, 'bytes': size.bytes, 'again': size.again,
                'calls': result.calls[size], 'time_us': dict(zip(('low', 'median', 'high'), quartiles(rounds_us))), 'rounds_us': rounds_us}

    return {'facts': facts, 'rows': [row(comparison, result, size) for comparison in comparisons for result in comparison.results
                                     for size in comparison.sizes if result.rounds.get(size)]}
