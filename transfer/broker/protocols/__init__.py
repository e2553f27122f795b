"""Wire formats of the broker's protocols: pure codecs, shared by its fronts and the clients.

abtp             abtp/1: ZeroMQ frames as requests, and answers as frames
abtp_delivered   messages that consumers and subscribers of abtp/1 receive
abtp_envelope    envelopes of abtp/1: reads a producer's frames, and writes what a consumer receives
abtp_lz4         LZ4 in abtp/1: decompresses frames and blocks, up to a limit
abtp_media       codecs and compressors for payloads of abtp/1
abtp_signing     control messages of abtp/1 that are signed with a token
abtp_words       constants of abtp/1: versions, codes, special topics, and JSON
native           the protocol of programs and the broker over transfer's own sockets (DEALER to ROUTER)
native_batch     several commands of the native protocol in one message
native_pieces    large messages in pieces between programs and the broker, as fast as the receiver takes them
native_registry  commands between programs and a broker's registry, in the native protocol
pybroker         PyBroker's wire format; big-endian
rqueue           rqueue's wire format; big-endian
ttp              TTP v2, the protocol of TensorMQ: a header of 32 bytes, then topic, metadata and data
zmtp             the handshake of ZeroMQ's wire format (ZMTP 3.x, mechanism NULL)
"""
