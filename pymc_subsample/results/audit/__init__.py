"""What the posterior of all rows says of the draws of a run."""
