"""The samplers, a folder each: step, kernel, checks."""
