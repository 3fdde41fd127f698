"""Other servers that weft is compared with: their environments, their model files, and how each is started."""
