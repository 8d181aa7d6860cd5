"""How a search is drawn, for pages, pictures, MLflow and reports alike: kinds, colours, axes, and the front itself.

A figure is the plain JSON that plotly.js draws; `pictures` draws the same by matplotlib.
"""
