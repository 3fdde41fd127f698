"""The small model that comes with weft, and how it was made."""
