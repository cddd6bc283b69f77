# SPDX-License-Identifier: Apache-2.0
"""Draws panels with lines beside each other, as SVG."""

import dataclasses
import math

WIDTH, HEIGHT, LEFT, TOP, GAP = 430, 300, 62, 56, 84


@dataclasses.dataclass
class Panel:
    """Lines of (x, y) by name. The y axis begins at `least_y`."""
    title: str
    x_label: str
    lines: dict
    least_y: float = 0
    has_points: bool = True


def svg(panels, colors, dashed=()):
    """Returns the SVG. `colors` has a colour for each name. The legend shows the names of the first panel."""
    width, height = LEFT + len(panels) * (WIDTH + GAP) - GAP + 24, TOP + HEIGHT + 50
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>', *_legend(panels[0].lines, colors, dashed),
        *(part for i, panel in enumerate(panels) for part in _draw(LEFT + i * (WIDTH + GAP), panel, colors, dashed)), "</svg>"])


def _step(span):
    """Returns the distance between grid lines: 1, 2 or 5 times a power of ten, so that there are four to nine lines."""
    step = 10.0 ** (math.floor(math.log10(max(span, 1e-9))) - 1)
    return next((step * factor for factor in (1, 2, 5, 10, 20, 50) if span / (step * factor) <= 8), span)


def _draw(left, panel, colors, dashed):
    points = [point for line in panel.lines.values() for point in line]
    most_x = max((x for x, _ in points), default=1) or 1
    most_y = max((y for _, y in points), default=1)
    most_y = panel.least_y + ((most_y - panel.least_y) * 1.05 or 1)
    x_at = lambda x: left + WIDTH * x / most_x  # noqa: E731
    y_at = lambda y: TOP + HEIGHT * (1 - (y - panel.least_y) / (most_y - panel.least_y))  # noqa: E731
    yield f'<text x="{left}" y="{TOP - 12}" font-weight="600">{panel.title}</text>'
    step = _step(most_y - panel.least_y)
    for i in range(math.ceil(panel.least_y / step), int(most_y / step) + 1):
        yield f'<path d="M{left} {y_at(i * step):.1f}h{WIDTH}" stroke="#ddd"/>'
        yield f'<text x="{left - 6}" y="{y_at(i * step) + 4:.1f}" text-anchor="end">{i * step:g}</text>'
    step = _step(most_x)
    for i in range(int(most_x / step) + 1):
        yield f'<text x="{x_at(i * step):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{i * step:g}</text>'
    yield f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">{panel.x_label}</text>'
    for name, line in panel.lines.items():
        drawn = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in sorted(line))
        dashes = ' stroke-dasharray="5 4"' if name in dashed else ""
        yield f'<polyline points="{drawn}" fill="none" stroke="{colors[name]}" stroke-width="2"{dashes}/>'
        if panel.has_points and name not in dashed:
            yield from (f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colors[name]}"/>' for x, y in line)


def _legend(names, colors, dashed):
    for i, name in enumerate(names):
        left = LEFT + 100 * i
        dashes = ' stroke-dasharray="5 4"' if name in dashed else ""
        yield f'<path d="M{left} 18h24" stroke="{colors[name]}" stroke-width="2"{dashes}/>'
        yield f'<text x="{left + 30}" y="22">{name}</text>'
