"""The chart of ddp_step.py: an SVG of the steps' times, a group of bars for each model."""

import xml.sax.saxutils

BARS = {  # variant: (what it is called, colour)
    'torch, gloo': ('DistributedDataParallel, Gloo', '#8b949e'),
    'torch, lockstep': ('DistributedDataParallel, Lockstep', '#79b8ff'),
    'lockstep': ('lockstep.torch.DistributedDataParallel', '#0366d6'),
}
NONE = 'no communication'
TEXT = '#6e7781'  # legible on white and on black
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 760, 110, 150, 14, 16, 44


def draw(milliseconds, caption):
    """The SVG as text. milliseconds: {model: {variant: a step's time}}. Each model's bars are relative to torch's over Gloo."""
    parts = []

    def text(x, y, words, anchor='start', size=12):
        parts.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{xml.sax.saxutils.escape(words)}</text>')

    def box(x, y, width, height, colour):
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"/>')
    x = 8
    for name, colour in BARS.values():
        box(x, 12, 10, 10, colour)
        text(x + 14, 21, name)
        x += 30 + 6.6 * len(name)
    y, room = TOP, WIDTH - LEFT - RIGHT
    for model, times in milliseconds.items():
        gloo, end = times['torch, gloo'], y + len(BARS) * BAR
        text(LEFT - 8, y + 1.9 * BAR, model, 'end', 13)
        for variant, (_, colour) in BARS.items():
            length = room * times[variant] / gloo
            box(LEFT, y, length, BAR - 2, colour)
            ratio = '' if times[variant] == gloo else f', {times[variant] / gloo:.2f}'
            text(LEFT + length + 6, y + BAR - 4, f'{times[variant]:.0f} ms{ratio}')
            y += BAR
        alone = LEFT + room * times[NONE] / gloo
        parts.append(f'<path d="M{alone:.1f} {end - len(BARS) * BAR - 3}V{end + 2}" stroke="{TEXT}" stroke-dasharray="3 2"/>')
        y += GAP
    text(LEFT, y + 4, f'Dashed line: the same step without communication. {caption}', size=11)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 14}" font-family="sans-serif" fill="{TEXT}">\n'
            + '\n'.join(parts) + '\n</svg>\n')
