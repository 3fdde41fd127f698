"""Texts of others that the corpus is drawn from: WordNet, and the King James Bible."""
