"""What comparisons have found out: as tables and a plot for people, and as JSON for scripts."""

import dataclasses
import math
import statistics
from xml.sax.saxutils import escape

TRANSPORTS = {'shm': 'shared memory', 'tcp': 'TCP', 'ofi': 'libfabric'}
UNITS = 'KMGT'


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

    def bandwidth(self, size, seconds):
        """The bus bandwidth in GB/s (10^9 bytes), as nccl-tests defines it for all-reduce: size / time x 2 (n - 1) / n."""
        return size / seconds / 1e9 * 2 * (self.ranks - 1) / self.ranks

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


def parse_size(text):
    """64K -> 65536: units are powers of 1024. ValueError for what is no size."""
    unit = UNITS.find(text[-1:].upper()) + 1 if text else 0
    digits = text[:-1] if unit else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"size '{text}' is not a number of bytes with K, M, G or T behind it at most")
    return int(digits) << 10 * unit


def size_text(size):
    """The shortest that parse_size reads back."""
    unit = 0
    while size >= 1024 and size % 1024 == 0 and unit < len(UNITS):
        size, unit = size // 1024, unit + 1
    return f'{size}{UNITS[unit - 1] if unit else ""}'


def time_text(seconds):
    us = 1e6 * seconds
    return f'{us:.0f}' if us >= 10_000 else f'{us:.1f}' if us >= 100 else f'{us:.2f}'


def facts_text(facts):
    return ''.join(f'# {name}: {value}\n' for name, value in facts.items())


def grid(comparison, width, headings, cell):
    """A row for each size. Every line but the rows begins with "#"."""
    lines = ['#' + f'{"size":>9}' + ''.join(f'  {heading:>{width}}' for heading in headings)]
    for size in comparison.sizes:
        lines.append(f'{size_text(size):>10}' + ''.join(f'  {cell(column, size):>{width}}' for column in range(len(headings))))
    return '\n'.join(lines) + '\n'


def table(comparison):
    """Who took part and how, who was dropped and why; the medians; and for each kind of Lockstep that has times its ratios to all others,
    the fastest peer of the row marked with a star."""
    results = comparison.results
    rounds = max((len(seconds) for result in results for seconds in result.rounds.values()), default=0)
    text = (f'#\n# {TRANSPORTS[comparison.transport]}, {comparison.ranks} ranks: all_reduce, f32 sum in place. Calls are timed one by one, '
            f'each on a vector just rewritten; time of the slowest rank, median of {rounds} rounds.\n')
    for result in results:
        kind = '' if result.kind == 'lockstep' else f'{result.kind}: '
        sockets = result.congestion_control not in ('', 'none')
        text += f'#   {result.name:14} {kind}{result.about}'
        text += f'; its connections used {result.congestion_control}\n' if sockets else '\n'
    text += ''.join(f'# dropped: {result.name} {result.dropped}\n' for result in results if result.dropped)

    def time_cell(column, size):
        seconds = results[column].median(size)
        return '-' if seconds is None else time_text(seconds)
    text += '#\n# time (us)\n' + grid(comparison, 14, [result.name for result in results], time_cell)

    for ours in results:
        if ours.kind != 'lockstep' or not any(ours.rounds.values()):
            continue
        others = [result for result in results if result is not ours]

        def ratio_cell(column, size, ours=ours, others=others):
            found = ratio(ours, others[column], size)
            star = '*' if others[column] is comparison.fastest_peer(size) else ' '
            return f'{found[1]:.2f} [{found[0]:.2f}-{found[2]:.2f}]{star}' if found else '- '
        text += (f'#\n# time of {ours.name} / time of the other in the same round: median [quartiles]; below 1 {ours.name} is faster; '
                 f'* the fastest peer\n') + grid(comparison, 20, [result.name for result in others], ratio_cell)
    return text


def to_json(facts, missing, comparisons):
    """The form of bench/report.h, with every round, so that other statistics can be made:
    {"facts": {"cpu": ..., ...}, "missing": ["gloo: ..."],
     "implementations": [{"transport": "tcp", "name": "lockstep", "kind": "lockstep", "about": ..., "congestion_control": "reno",
                          "dropped": null}],
     "rows": [{"transport": "tcp", "ranks": 2, "name": "lockstep", "bytes": 8, "calls": 1000, "time_us": {"low": ..., "median": ...,
               "high": ...}, "busbw_gbps": 0.001, "rounds_us": [7.0, 7.1, ...], "lockstep_ratio": {"lockstep": {"low": ..., ...}}}]}
    A size that was not measured has no row. `lockstep_ratio` is, for each kind of Lockstep but this one, its time over this one's."""
    def spread(values):
        return dict(zip(('low', 'median', 'high'), values))

    def row(comparison, result, size):
        rounds_us = [1e6 * seconds for seconds in result.rounds[size]]
        ratios = {ours.name: ratio(ours, result, size) for ours in comparison.results if ours.kind == 'lockstep' and ours is not result}
        return {'transport': comparison.transport, 'ranks': comparison.ranks, 'name': result.name, 'bytes': size,
                'calls': result.calls[size], 'time_us': spread(quartiles(rounds_us)),
                'busbw_gbps': comparison.bandwidth(size, result.median(size)), 'rounds_us': rounds_us,
                'lockstep_ratio': {name: spread(values) for name, values in ratios.items() if values}}

    every = [(comparison, result) for comparison in comparisons for result in comparison.results]
    return {'facts': facts, 'missing': missing,
            'implementations': [{'transport': comparison.transport, 'name': result.name, 'kind': result.kind, 'about': result.about,
                                 'congestion_control': result.congestion_control, 'dropped': result.dropped or None}
                                for comparison, result in every],
            'rows': [row(comparison, result, size) for comparison, result in every for size in comparison.sizes if result.rounds.get(size)]}


# Of one panel, in pixels. The legend stands right of the axes.
PANEL_WIDTH, PANEL_HEIGHT = 900, 430
LEFT, RIGHT, TOP, BOTTOM = 70, 690, 40, 380
LABEL_WIDTH = 28  # labels that are nearer to each other would overlap
# Okabe and Ito's colours, which the colour-blind can tell apart, and four more; Lockstep's are the first.
COLOURS = ('#000000', '#d55e00', '#0072b2', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#7f7f7f', '#8c564b', '#9467bd', '#b8b000')


def plot(comparisons):
    """Bus bandwidth over size, both in powers: an SVG document with a panel for each comparison."""
    height = PANEL_HEIGHT * len(comparisons)
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{PANEL_WIDTH}" height="{height}" viewBox="0 0 {PANEL_WIDTH} {height}" '
           f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n')
    for i, comparison in enumerate(comparisons):
        svg += f'<g transform="translate(0 {PANEL_HEIGHT * i})">\n{panel(comparison)}</g>\n'
    return svg + '</svg>\n'


def axis(low, high, start, end):
    """From values to pixels."""
    return lambda value: start + (end - start) * (math.log10(value / low) / math.log10(high / low) if high > low else 0.5)


def style(kind, index):
    # When the colours have run out they begin again, dotted.
    dashes = ' stroke-dasharray="6 4"' if kind == 'limit' else ' stroke-dasharray="2 3"' if index >= len(COLOURS) else ''
    return f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="{3 if kind == "lockstep" else 1.5}"{dashes}'


def panel(comparison):
    def words(x, y, anchor, text):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>\n'

    def line(x1, y1, x2, y2, look):
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {look}/>\n'

    def points(result):
        return [(size, comparison.bandwidth(size, result.median(size))) for size in comparison.sizes if result.median(size) is not None]

    sizes = comparison.sizes
    bandwidths = [bandwidth for result in comparison.results for _, bandwidth in points(result)] or [1]
    first = math.floor(math.log10(min(bandwidths)))
    last = max(first + 1, math.ceil(math.log10(max(bandwidths))))
    x, y = axis(sizes[0], sizes[-1], LEFT, RIGHT), axis(10.0**first, 10.0**last, BOTTOM, TOP)
    svg = words((LEFT + RIGHT) / 2, TOP - 16, 'middle', f'all-reduce over {TRANSPORTS[comparison.transport]}, {comparison.ranks} ranks: '
                'bus bandwidth (GB/s) over size (bytes)')
    faint = 'stroke="#dddddd"'
    for decade in range(first, last + 1):
        at = y(10.0**decade)
        svg += line(LEFT, at, RIGHT, at, faint) + words(LEFT - 8, at + 4, 'end', f'{10.0**decade:g}')
    labelled = 0
    for size in sizes:
        svg += line(x(size), TOP, x(size), BOTTOM, faint)
        if x(size) - labelled >= LABEL_WIDTH:
            svg += words(x(size), BOTTOM + 18, 'middle', size_text(size))
            labelled = x(size)
    # Lockstep first, so that it has the first colours whatever the order.
    for index, result in enumerate(sorted(comparison.results, key=lambda result: result.kind != 'lockstep')):
        look = style(result.kind, index)
        path = ' '.join(f'{x(size):.1f},{y(bandwidth):.1f}' for size, bandwidth in points(result))
        svg += f'<polyline fill="none" {look} points="{path}"/>\n' if path else ''
        at = TOP + 10 + 22 * index
        svg += line(RIGHT + 20, at, RIGHT + 56, at, look)
        svg += words(RIGHT + 64, at + 4, 'start', result.name + (' (dropped)' if result.dropped else ''))
    return svg
