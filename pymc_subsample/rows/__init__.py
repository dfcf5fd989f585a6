"""Rows on disk: a row-major file that any number of processes map, made once from any table."""

from pymc_subsample.rows.on_disk import Rows, Several

__all__ = ["Rows", "Several"]
