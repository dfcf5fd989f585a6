"""Compiled transitions and estimators: numerics on arrays and functions."""
