"""Metropolis-Hastings decided on minibatches: Barker, austerity, confidence."""
