import os
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.parallel import make_chunks

from pymc_subsample import __version__

project = "pymc_subsample"
author = "The pymc_subsample developers"
project_copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "jupyter_execute"]

autosummary_generate = True
numpydoc_show_class_members = False
maximum_signature_line_length = 80  # an argument on a line of its own beyond it

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

# Notebooks are stored without outputs: building the pages runs them, and an error fails the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
# It is about the machine that builds the pages.
os.environ["PYTHONWARNINGS"] = "ignore:PyTensor could not link to a BLAS"
# Pages run side by side, one on each processor.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "pymc_subsample"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
        "text": "pymc_subsample",
    },
    "navbar_center": [],
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "show_toc_level": 2,
}
# The groups of the first page, on every page.
html_sidebars = {"**": ["groups.html"]}


# Pages that take longest to run, in order; but the first two need other kernels, for which neither
# waits.
LONGEST = [
    "tutorials/exact_or_perturbed", "tutorials/stochastic_gradients", "tutorials/planes",
    "howto/time_in_panels", "howto/events_and_censoring", "tutorials/hmcecs", "howto/panels",
    "tutorials/comparing_models", "howto/latent_classes", "howto/missing_values",
    "gallery/correlated_slopes", "howto/categories",
]  # fmt: skip


def deal_out(app, env, docnames):
    """Deal pages that are run to Sphinx's processes, the longest first, so that all end together.

    Each process reads a stretch of pages at a time.
    """
    run = [x for x in docnames if x.startswith(("gallery/", "howto/", "quickstart", "tutorials/"))]
    run.sort(key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
    others = [x for x in docnames if x not in run]
    stretches = make_chunks(docnames, app.parallel)
    piles = [[] for _ in range(max(len(stretches) // app.parallel, 1) * app.parallel)]
    for i, name in enumerate(run):
        turn, place = divmod(i, len(piles))
        piles[place if turn % 2 == 0 else -1 - place].append(name)
    for pile, stretch in zip(piles, stretches, strict=False):
        more = max(len(stretch) - len(pile), 0)
        pile += others[:more]
        del others[:more]
    docnames[:] = [name for pile in [*piles, others] for name in pile]


def as_mathml(writer, node):
    """Write mathematics that browsers show themselves: MathJax would come from the network."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    writer.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app):
    """Make the folder for static files, to which the theme copies logos before Sphinx makes it."""
    Path(app.outdir, "_static").mkdir(parents=True, exist_ok=True)
    app.add_html_math_renderer("mathml", (as_mathml, None), (as_mathml, None))
    app.connect("env-before-read-docs", deal_out)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
