"""Ollama's API: chats, generations and embeddings, and what is served, as Ollama's clients ask for them."""
