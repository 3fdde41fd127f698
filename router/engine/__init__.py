"""The asyncio loop around the scheduler, and the streams of its clients."""
