"""Grammars of structured output, compiled in a process of their own."""
