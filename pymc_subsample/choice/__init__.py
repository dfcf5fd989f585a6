"""Which sampler a model gets where nobody names one: `pms.auto`, and `pms.subsampling`."""
