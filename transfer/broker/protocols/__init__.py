"""Wire formats that the broker speaks beside its own: pure codecs, shared by its fronts and the clients."""
