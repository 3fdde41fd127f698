"""From logits to tokens: processors, candidates, filters, draws, grammars."""
