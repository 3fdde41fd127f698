"""Readers of the external texts from which the corpus is made: WordNet and the King James Bible."""
