"""Demo model that comes with weft, and the programs that trained it."""
