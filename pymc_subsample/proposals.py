"""What Metropolis-Hastings steps may propose: their argument `proposal`."""

from pymc_subsample.chain.proposals import AdaptiveMetropolis, Langevin, RandomWalk

__all__ = ["AdaptiveMetropolis", "Langevin", "RandomWalk"]
