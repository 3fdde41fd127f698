"""HTTP API of the router: the aiohttp application, the dialects, and the routes that belong to none."""
