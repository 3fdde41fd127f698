"""text-generation-inference's dialect."""
