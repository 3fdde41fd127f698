"""Text to tokens and back: tokenizer, chat templates, response parser."""
