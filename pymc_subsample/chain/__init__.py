"""PyMC step methods."""
