"""pyzmq's utilities, as far as they make sense here: jsonapi, monitor, strtypes, z85.

jsonapi   JSON as UTF-8 bytes
monitor   parses the messages of a monitor's PAIR socket
strtypes  conversions between text and bytes, kept for old programs (deprecated in pyzmq 23)
z85       Z85: four bytes as five printable characters (ZeroMQ RFC 32)
"""
