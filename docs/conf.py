"""How the pages of this directory become a site: `sphinx-build -nW docs site`, or `nox -s docs`.

Sphinx, because it checks every link between pages and every anchor by itself (`-nW` makes each a failure), builds
without network, and colours code when it builds: a page loads no font and no script of anybody else's.
"""

project = "ci-tasks"
html_title = "ci-tasks"
extensions = ["myst_parser"]
myst_heading_anchors = 3  # anchors as GitHub makes them, so that a link leads to the same place on both
html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
