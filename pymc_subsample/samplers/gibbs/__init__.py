"""Austerity Gibbs sampling."""
