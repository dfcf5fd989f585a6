"""Units: rows that depend on each other through variables of their own, which are integrated out."""
