"""Acceptance tests: compiled functions that accept, reject or ask for more rows."""
