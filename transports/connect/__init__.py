"""Connects endpoints: handshakes, listeners, and reconnection after a loss.

accept           what listeners share: how long they accept, and a first look at a connection
acceptor         a bound endpoint, with the handshakes of its peers in the reactor's thread
backoff          pauses between attempts
connection       what a connection is, who owns it, and what its owner is asked
connector        connects in the reactor's thread, and reconnects when the connection is lost
establish        from an endpoint to a connection after its handshake, and to the next one when that is lost
pacing           disables pacing between two programs of one machine
pending          connections whose peers have not authenticated yet, of all listeners of this process
shared_listener  a listening socket that several endpoints of one context share
"""
