"""Scalable Metropolis-Hastings."""
