"""Wire formats of the broker's protocols: pure codecs, shared by its fronts and the clients."""
