"""Replicas of weft on a Ray cluster, behind Ray Serve. app.py and request_router.py import Ray, which is an extra."""
