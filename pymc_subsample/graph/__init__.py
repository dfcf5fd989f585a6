"""Graphs and what is known of them without numbers: one interpreter of arrays, and its domains."""
