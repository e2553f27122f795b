"""Implements `transfer bench broker`: starts processes that load a broker, and measures it."""
