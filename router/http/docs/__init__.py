"""The OpenAPI document and the page at /docs."""
