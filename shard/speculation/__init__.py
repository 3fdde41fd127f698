"""Speculation: guesses of a sequence's next tokens, which one step verifies together."""
