"""Bounds on what rows can contribute."""
