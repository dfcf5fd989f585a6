r"""A group's effects as the chain sees them: independent of what their distribution depends on.

The k effects of a unit are :math:`u = d + K e` with :math:`e \sim N(0, 1)`, d and K functions of
other parameters. Near the posterior's centre the log-likelihood in u is about
:math:`b'u - \tfrac12 u' I u`, so that, given the other parameters,

.. math:: e \mid d, K, y \approx N(Q^{-1} K'(b - I d),\; Q^{-1}), \qquad Q = 1 + K' I K = C C'.

The chain moves :math:`v = C' e - C^{-1} K'(b - I d)`, which is about standard normal whatever d
and K are. Where there is much information (:math:`K' I K \gg 1`) that is the centred form, where
there is little the non-centred one, and in between their optimal mixture: for k = 1 the weight of
the centred form is :math:`I K^2 / (1 + I K^2)` at every K (Papaspiliopoulos, Roberts and Skoeld
2007, section 4; Gorinova, Moore and Hoffman 2020), and subtracting the conditional mean removes the
ridge as well (dynamic rescaling; Kleppe 2019).

C is upper triangular where K is lower triangular: then :math:`C' K^{-1}`, with which v follows u,
is triangular too and tends to the constant factor of I, where a lower one would turn with K.

Locations beta, on which no scale depends, may move the rows as d does, such as an intercept to
which the effects are added: d is then ``d + D beta``, with beta as the chain sees it, after joint
blocks have taken their part, but for those whose effects d holds.

The variable itself is ``x = mean + scale e``. K, scale, d and mean of a block of J units are in an
array `given`, for which `table` says where the numbers of each entry start, or -1 where it is zero,
and by how much they move from one unit to the next: k x k entries of K, k x k of scale, k of d, k
of mean. A `place` is (k, J, w, start, slant). K and scale are made of blocks of w x w along their
diagonals. Vectors psi, theta and e hold component a of all units from ``at[a]`` on; the upper
triangle of I and then b start at `start` of psi, entry by entry. D, or for a joint block A,
both of shape (k, locations), starts at `slant` of psi.
"""

import numpy as np

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import inner
from pymc_subsample.kernels.vectors import clear


@inner
def read(table, given, entry, unit):
    """Return an entry for a unit."""
    place = table[0, entry]
    return given[place + table[1, entry] * unit] if place >= 0 else 0.0


@inner
def add(table, given, entry, unit, value):
    """Add to an entry for a unit, if there is such an entry."""
    place = table[0, entry]
    if place >= 0:
        given[place + table[1, entry] * unit] += value


@inner
def solve_upper(C, x, out):
    """``C^-1 x``; may be in place."""
    k = x.shape[0]
    for a in range(k - 1, -1, -1):
        total = x[a]
        for c in range(a + 1, k):
            total -= C[a, c] * out[c]
        out[a] = total / C[a, a]


@inner
def solve_lower(C, x, out):
    """``C'^-1 x``; may be in place."""
    for a in range(x.shape[0]):
        total = x[a]
        for c in range(a):
            total -= C[c, a] * out[c]
        out[a] = total / C[a, a]


@inner
def shifted(k, slant, locations, constants, psi):
    """``D beta``."""
    size, shift = locations.shape[0], np.zeros(k)
    for a in range(k):
        for i in range(size):
            shift[a] += constants[slant + a * size + i] * psi[locations[i]]
    return shift


@inner
def condition(k, units, w, unit, start, table, given, shift, psi, K, info, scaled, C, rest, center):
    """Fill K, I, I K, C, b - I d and C^-1 K'(b - I d) of a unit."""
    n = 0
    for a in range(k):
        for b in range(k):
            K[a, b] = read(table, given, a * k + b, unit)
            if b >= a:
                info[a, b] = info[b, a] = psi[start + n * units + unit]
                n += 1
    for a in range(k):
        rest[a] = psi[start + (n + a) * units + unit]
        for b in range(k):
            rest[a] -= info[a, b] * (read(table, given, 2 * k * k + b, unit) + shift[b])
            total, first = 0.0, b - b % w
            for c in range(first, first + w):
                total += info[a, c] * K[c, b]
            scaled[a, b] = total
    for a in range(k - 1, -1, -1):
        for b in range(a, -1, -1):
            total, first = 1.0 if a == b else 0.0, a - a % w
            for c in range(first, first + w):
                total += K[c, a] * scaled[c, b]
            for c in range(a + 1, k):
                total -= C[a, c] * C[b, c]
            C[b, a] = np.sqrt(total) if a == b else total / C[a, a]
    for a in range(k):
        total, first = 0.0, a - a % w
        for c in range(first, first + w):
            total += K[c, a] * rest[c]
        center[a] = total
    solve_upper(C, center, center)


@kept()
def standard(place, at, table, given, locations, beta, psi, e):
    """Write e for v; return log |de / dv|. Locations are those of the vector beta."""
    k, units, w, start, slant = place
    K, info, scaled, C = (np.empty((k, k)), np.empty((k, k)), np.empty((k, k)), np.empty((k, k)))
    rest, center, v = np.empty(k), np.empty(k), np.empty(k)
    shift = shifted(k, slant, locations, psi, beta)
    volume = 0.0
    for unit in range(units):
        condition(
            k, units, w, unit, start, table, given, shift, psi, K, info, scaled, C, rest, center
        )  # fmt: skip
        for a in range(k):
            v[a] = psi[at[a] + unit] + center[a]
            volume -= np.log(C[a, a])
        solve_lower(C, v, v)
        for a in range(k):
            e[at[a] + unit] = v[a]
    return volume


@kept()
def moved(place, at, table, given, locations, beta, theta, e, v):
    """Write v for e; theta holds the constants, beta the locations."""
    k, units, w, start, slant = place
    K, info, scaled, C = (np.empty((k, k)), np.empty((k, k)), np.empty((k, k)), np.empty((k, k)))
    rest, center = np.empty(k), np.empty(k)
    psi, shift = theta, shifted(k, slant, locations, theta, beta)
    for unit in range(units):
        condition(
            k, units, w, unit, start, table, given, shift, psi, K, info, scaled, C, rest, center
        )  # fmt: skip
        for a in range(k):
            total = -center[a]
            for c in range(a + 1):
                total += C[c, a] * e[at[c] + unit]
            v[at[a] + unit] = total


@kept()
def standard_back(
    place, at, table, given, locations, beta, psi, e, bar_e, bar_given, bar_beta, bar_psi
):
    """Pull derivatives in e, and the volume's, back to v and, added up, to K, d and locations.

    The derivative of C is that of a Cholesky factor (Murray 2016, arXiv:1602.07527, section 3),
    with components from the last to the first.
    """
    k, units, w, start, slant = place
    K, info, scaled, C = (np.empty((k, k)), np.empty((k, k)), np.empty((k, k)), np.empty((k, k)))
    bar_C, bar_Q, line = np.empty((k, k)), np.empty((k, k)), np.empty(k)
    rest, center, bar_v, bar_p = np.empty(k), np.empty(k), np.empty(k), np.empty(k)
    size, shift = locations.shape[0], shifted(k, slant, locations, psi, beta)
    for unit in range(units):
        condition(
            k, units, w, unit, start, table, given, shift, psi, K, info, scaled, C, rest, center
        )  # fmt: skip
        for a in range(k):
            bar_v[a] = bar_e[at[a] + unit]
        solve_upper(C, bar_v, bar_v)
        solve_lower(C, bar_v, bar_p)
        for a in range(k):
            bar_psi[at[a] + unit] = bar_v[a]
            for b in range(a, k):
                bar_C[a, b] = -e[at[a] + unit] * bar_v[b] - bar_p[a] * center[b]
            bar_C[a, a] -= 1.0 / C[a, a]
        for a in range(k):
            for b in range(a, k):
                total = 0.0
                for c in range(a + 1):
                    total += C[c, a] * bar_C[c, b]
                bar_Q[a, b] = bar_Q[b, a] = 0.5 * total
        for _ in range(2):  # C'^-1 from the left, and then from the right
            for b in range(k):
                for a in range(k):
                    line[a] = bar_Q[a, b]
                solve_lower(C, line, line)
                for a in range(k):
                    bar_Q[a, b] = line[a]
            for a in range(k):
                for b in range(a):
                    bar_Q[a, b], bar_Q[b, a] = bar_Q[b, a], bar_Q[a, b]
        for a in range(k):
            line[a] = 0.0
            first = a - a % w
            for b in range(first, first + w):
                total = rest[a] * bar_p[b]
                for c in range(k):
                    total += 2.0 * scaled[a, c] * bar_Q[c, b]
                add(table, bar_given, a * k + b, unit, total)
                line[a] += K[a, b] * bar_p[b]
        for a in range(k):
            total = 0.0
            for b in range(k):
                total -= info[a, b] * line[b]
            add(table, bar_given, 2 * k * k + a, unit, total)
            for i in range(size):
                bar_beta[locations[i]] += psi[slant + a * size + i] * total


@kept()
def spread(place, at, table, given, e, theta):
    """Write x for e; return log |dx / de|."""
    k, units, w, _, _ = place
    volume = 0.0
    for unit in range(units):
        for a in range(k):
            total = read(table, given, 2 * k * k + k + a, unit)
            for b in range(a - a % w, a + 1):
                total += read(table, given, (k + a) * k + b, unit) * e[at[b] + unit]
            theta[at[a] + unit] = total
            volume += np.log(read(table, given, (k + a) * k + a, unit))
    return volume


@kept()
def gathered(place, at, table, given, theta, e):
    """Write e for x."""
    k, units, w, _, _ = place
    for unit in range(units):
        for a in range(k):
            total = theta[at[a] + unit] - read(table, given, 2 * k * k + k + a, unit)
            for b in range(a - a % w, a):
                total -= read(table, given, (k + a) * k + b, unit) * e[at[b] + unit]
            e[at[a] + unit] = total / read(table, given, (k + a) * k + a, unit)


@kept()
def spread_back(place, at, table, given, e, bar_theta, bar_given, bar_e):
    """Pull derivatives in x, and the volume's, back to e, scale and mean."""
    k, units, w, _, _ = place
    clear(bar_given)
    for unit in range(units):
        for b in range(k):
            total = 0.0
            for a in range(b, b - b % w + w):
                bar = bar_theta[at[a] + unit]
                total += read(table, given, (k + a) * k + b, unit) * bar
                add(table, bar_given, (k + a) * k + b, unit, bar * e[at[b] + unit])
            bar_e[at[b] + unit] = total
            add(table, bar_given, 2 * k * k + k + b, unit, bar_theta[at[b] + unit])
            diagonal = (k + b) * k + b
            add(table, bar_given, diagonal, unit, 1.0 / read(table, given, diagonal, unit))


@kept()
def shear(place, at, table, given, psi, e, locations, sign, out):
    """Add ``sign A' K e`` to the locations."""
    k, _, w, _, slant = place
    size = locations.shape[0]
    for a in range(k):
        u, first = 0.0, a - a % w
        for b in range(first, first + w):
            u += read(table, given, a * k + b, 0) * e[at[b]]
        for i in range(size):
            out[locations[i]] += sign * psi[slant + a * size + i] * u


@kept()
def shear_back(place, at, table, given, psi, e, locations, bar_theta, bar_given, bar_e):
    """Pull derivatives in ``locations - A' K e`` back: to K, and added to those in e."""
    k, _, w, _, slant = place
    clear(bar_given)
    size = locations.shape[0]
    for a in range(k):
        u, first = 0.0, a - a % w
        for i in range(size):
            u -= psi[slant + a * size + i] * bar_theta[locations[i]]
        for b in range(first, first + w):
            bar_e[at[b]] += read(table, given, a * k + b, 0) * u
            add(table, bar_given, a * k + b, 0, u * e[at[b]])
