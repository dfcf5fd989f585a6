"""Arguments of `pm.sample` that are meant for PyMC's NUTS, and what is said of each.

``{}`` stands for what asks for a step of ours, as ``pms.HMCECS``.
"""

FOR_NUTS = [
    ({"target_accept": 0.9}, r"pm\.sample\(target_accept=0\.9\) .* write {}\(target_accept=0\.9\)"),
    ({"nuts": {"max_treedepth": 12}}, r"write {}\(max_treedepth=12\)"),
    ({"nuts": {"step_scale": 2}}, r"\(step_scale=2\) is for PyMC's own .*: leave out step_scale="),
    ({"target_accept": 0.9, "nuts": {"scaling": 1}}, r"and leave out scaling="),
    ({"nuts_sampler": "nutpie"}, r"nuts_sampler='nutpie'\) .* nuts_sampler=, or {}\(\)"),
    ({"backend": "jax"}, r"backend='jax'\) says how PyMC compiles .* Leave it out"),
    ({"backend": "c"}, r"backend='c'\) says how PyMC compiles"),
    ({"compile_kwargs": {"mode": "FAST_COMPILE"}}, r"'FAST_COMPILE'}}\) says how PyMC compiles"),
    ({"init": "adapt_full"}, r"init='adapt_full'\) chooses where PyMC's NUTS starts"),
]
