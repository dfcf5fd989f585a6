"""Units: rows that share variables of their own, which are integrated out."""
