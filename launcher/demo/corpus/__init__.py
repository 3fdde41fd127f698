"""Our own grammars of small talks and stories, and readers of the two books beside them.

All chance comes from the generator that is handed in: the same seed, the same text.
"""
