"""`weft doctor`: checks of the machine, the installation and a model."""
