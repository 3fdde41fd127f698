"""Results of a run as tables, plots, HTML, JSON and CSV."""
