"""Firefly Monte Carlo."""
