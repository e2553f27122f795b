"""The broker over HTTP: health, metrics, and what operators do. aiohttp has its home here."""
