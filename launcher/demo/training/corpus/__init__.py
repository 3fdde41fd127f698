"""Training corpus of the demo model: generators of conversations and stories, and readers of WordNet and the King James
Bible.

All randomness comes from the generator in the arguments: the same seed gives the same text.
"""
