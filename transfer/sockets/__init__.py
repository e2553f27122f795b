"""Sockets: what users send and receive with, and their connections."""
