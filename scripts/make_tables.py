"""Write the correction tables shipped with the package.

Run as `python scripts/make_tables.py` from the repository, in an environment with the package.
"""

from pathlib import Path

import pymc_subsample.samplers.minibatch.correction as correction

SIGMAS = (1.0, 1.2, 1.3)


def table(sigmas=SIGMAS) -> str:
    lines = ["sigma,support,probability"]
    for sigma in sigmas:
        found = correction.solve_correction(sigma)
        pairs = zip(found.support.tolist(), found.probabilities.tolist(), strict=True)
        lines += [f"{sigma},{round(point, 9)!r},{p!r}" for point, p in pairs]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    path = Path(correction.__file__).parent / correction._TABLES
    path.write_text(table())
    print(f"Wrote {path}")
