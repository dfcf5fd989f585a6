"""Delayed acceptance: control variates decide first, all rows about what these let pass."""
