"""The page that browsers get at `/`: its sources (`sources/`), what `make page` builds from them (`static/`), and the
routes that serve it."""
