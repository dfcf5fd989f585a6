"""HMC with energy-conserving subsampling."""
