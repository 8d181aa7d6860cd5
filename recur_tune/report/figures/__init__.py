"""Figures shared by pages, pictures, MLflow and reports: styles, axes, and the front.

A figure is the plain JSON that plotly.js draws; `pictures` draws the same with matplotlib.
"""
