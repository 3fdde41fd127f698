"""Workers that answer the verbs with a model: loading, warm-up, overlapped decode steps."""
