"""ArviZ's statistics of arrays, imported when the first is computed: steps are made without."""


def __getattr__(name):
    from arviz_stats.base import array_stats

    return getattr(array_stats, name)
