"""Draw the site's logo, its icon and the gallery's thumbnails into `docs/_static`.

python docs/make_drawings.py

Plain SVG without a background, in colours that show on light pages as on dark ones.
"""

from pathlib import Path

import numpy as np

STATIC = Path(__file__).parent / "_static"
FAINT, READ, CURVE = "#8d9bb0", "#2f7fd1", "#e8762c"
WIDTH, HEIGHT = 320, 180


def dot(x, y, radius, color, opacity=1.0):
    faint = f' opacity="{opacity}"' if opacity < 1 else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"{faint}/>'


def path(x, y, color, width=3, dashes=""):
    points = " L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<path d="M{points}" fill="none" stroke="{color}" stroke-width="{width}" '
        f'stroke-linecap="round" stroke-linejoin="round"{dashed}/>'
    )


def box(x, y, width, height, color, opacity=1.0):
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
        f'fill="{color}" opacity="{opacity}"/>'
    )


def save(name, parts, width=WIDTH, height=HEIGHT):
    (STATIC / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def emblem(n, every, radius, width):
    """Many faint points, a few of them read, and the curve that these few are enough for."""
    rng = np.random.default_rng(7)
    x = (np.arange(n) + 0.5) / n * 56 + 4
    middle = 51 - 38 / (1 + np.exp(-(x - 32) / 7))
    y = middle + np.clip(rng.normal(0, 7, n), -11, 11)
    read = np.arange(n) % every == every // 2
    curve = np.linspace(4, 60, 40)
    return [
        *(dot(a, b, radius * 0.8, FAINT, 0.55) for a, b in zip(x[~read], y[~read], strict=True)),
        path(curve, 51 - 38 / (1 + np.exp(-(curve - 32) / 7)), CURVE, width),
        *(dot(a, b, radius * 1.3, READ) for a, b in zip(x[read], y[read], strict=True)),
    ]


def airlines(rng):
    """Intervals of fourteen airlines."""
    middle = np.linspace(95, 225, 14) + rng.normal(0, 16, 14)
    half = rng.uniform(8, 34, 14)
    y = np.linspace(16, 164, 14)
    lines = [path([a - h, a + h], [b, b], FAINT) for a, h, b in zip(middle, half, y, strict=True)]
    return lines + [dot(a, b, 4, READ) for a, b in zip(middle, y, strict=True)]


def planes(rng):
    """Planes alone, far apart, and their estimates, which are drawn together."""
    y = np.linspace(16, 164, 11)
    alone, few = np.linspace(70, 250, 11) + rng.uniform(-50, 50, 11), rng.uniform(0.3, 0.9, 11)
    together = 160 + (1 - few) * (alone - 160)
    lines = [path([a, b], [c, c], FAINT, 2) for a, b, c in zip(alone, together, y, strict=True)]
    apart = [dot(a, c, 7 - 4 * f, FAINT) for a, c, f in zip(alone, y, few, strict=True)]
    near = [dot(b, c, 7 - 4 * f, READ) for b, c, f in zip(together, y, few, strict=True)]
    return [path([160, 160], [8, 172], CURVE, 2, "6 6"), *lines, *apart, *near]


def grid(rng):
    """All rows, and the few that a draw reads."""
    read = rng.choice(20 * 9, 7, replace=False)
    places = [(18 + 15 * (k % 20), 18 + 18 * (k // 20)) for k in range(20 * 9)]
    return [
        box(x - 5, y - 4, 10, 8, READ if k in read else FAINT, 1.0 if k in read else 0.35)
        for k, (x, y) in enumerate(places)
    ]


def density(x, middle, scale):
    return 158 - 128 * np.exp(-0.5 * ((x - middle) / scale) ** 2)


def perturbed(_):
    """The posterior, and one that noise has widened and moved."""
    x = np.linspace(20, 300, 90)
    return [
        path([20, 300], [158, 158], FAINT, 1.5),
        path(x, 158 - 0.8 * (158 - density(x, 172, 50)), CURVE, 3, "8 7"),
        path(x, density(x, 155, 38), READ, 3.5),
    ]


def batches(rng):
    """At how many rows tests decided."""
    counts = np.exp(-0.5 * np.arange(16) / 2.2) * 130 + rng.uniform(2, 9, 16)
    first = [
        box(22 + 17.5 * k, 160 - c, 14, c, READ if k < 9 else FAINT) for k, c in enumerate(counts)
    ]
    return [*first, path([92, 92], [14, 160], CURVE, 2.5, "7 6")]


def noisy(rng):
    """A path that follows noisy gradients around a mode."""
    at, places = np.array([-115.0, 55.0]), []
    for _ in range(90):
        places.append(at.copy())
        at = at - 0.09 * at + rng.normal(0, [11, 6])
    x, y = np.array(places).T
    rings = [
        f'<ellipse cx="165" cy="90" rx="{r}" ry="{r * 0.52:.1f}" fill="none" stroke="{FAINT}" '
        f'stroke-width="1.5" opacity="{o}"/>'
        for r, o in ((45, 1), (85, 0.7), (128, 0.45))
    ]
    return [*rings, path(x + 165, 90 - y, READ, 1.8), dot(165, 90, 4.5, CURVE)]


def compared(_):
    """Predictive densities of four models, with their errors."""
    middle, half = [262, 246, 170, 84], [14, 16, 22, 30]
    y = [32, 72, 112, 152]
    best = path([262, 262], [14, 168], CURVE, 2, "6 6")
    return [
        best,
        *(
            part
            for a, h, b in zip(middle, half, y, strict=True)
            for part in (path([a - h, a + h], [b, b], FAINT), dot(a, b, 6, READ))
        ),
    ]


if __name__ == "__main__":
    STATIC.mkdir(exist_ok=True)
    save("logo", emblem(70, 10, 1.7, 3.2), 64, 64)
    save("icon", emblem(12, 4, 4.5, 7), 64, 64)
    drawings = {
        "first_run": airlines, "planes": planes, "rows_on_disk": grid,
        "exact_or_perturbed": perturbed, "minibatch_tests": batches,
        "stochastic_gradients": noisy, "comparing_models": compared,
    }  # fmt: skip
    for name, drawn in drawings.items():
        save(name, drawn(np.random.default_rng(3)))
