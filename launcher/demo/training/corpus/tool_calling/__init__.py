"""Conversations in which tools are called."""
