"""The chain's own coordinates, in which the posterior of a hierarchical model is nearly normal."""

from pymc_subsample.coordinates.coordinates import Coordinates, find_coordinates
from pymc_subsample.coordinates.nesting import find_nesting
from pymc_subsample.coordinates.qr import QRCoordinates, find_qr
from pymc_subsample.coordinates.verification import reparameterise

__all__ = [
    "Coordinates", "QRCoordinates", "find_coordinates", "find_nesting", "find_qr", "reparameterise",
]  # fmt: skip
