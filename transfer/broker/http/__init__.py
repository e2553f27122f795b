"""The broker over HTTP: health, metrics, operators' calls. Only this package uses aiohttp."""
