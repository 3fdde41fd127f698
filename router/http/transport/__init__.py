"""HTTP without a dialect: bodies, headers, errors, server-sent events, authentication."""
