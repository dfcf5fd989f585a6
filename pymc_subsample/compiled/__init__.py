"""Compiling, linking, keeping machine code: all that uses private parts of numba."""
