"""The protocols that the broker speaks, one module each.

abtp                      the abtp front: a ROUTER for producers and consumers, and a PUB for fan-out
abtp_peer_names           the names of peers of abtp's ROUTER
abtp_pub                  fan-out of abtp/1: sends everything that SUB sockets subscribed to, as envelopes
abtp_relay                the relay in front of abtp's sockets
abtp_request_reader       decodes the messages of abtp's peers
abtp_sender               sends messages to abtp's peers, to each in order
abtp_sockets              the two libzmq sockets of the abtp front, and their options
abtp_subscription_limits  limits on the subscriptions of abtp's SUBs
abtp_unrouted             holds messages without a route whose consumer may be restarting
native                    the native front: transfer's sockets over any transport, with tensors as they are
native_backlog            messages of programs that take longer than a turn of the loop
native_catch_up           subscribers that choose where they begin (`?begin=`)
native_consumers          the consumers of programs that speak the native protocol
native_downloads          large messages that consumers fetch in ranges
native_frames             converts messages between transfer's sockets and the broker
native_outbox             the answers of the ROUTER to programs, gathered for a turn of the loop
native_plain              messages of plain REQs: each gets one answer, that it is kept, or why it is not
native_publisher          the PUB socket of the native front
native_queue              a PUSH socket that distributes a topic's messages to PULL clients
native_registry           the broker as a name service, for programs that announce their endpoints
native_requests           the ROUTER of the native front: programs that publish and consume, and plain REQs
native_sockets            the sockets of the native front that the broker's loop reads
native_uploads            large messages that programs send in pieces, and the broker forwards as they come
native_waiting            publishes of programs that wait for the disk, while their other commands are handled
publisher_front           shared code of simple fronts
pybroker                  the front for PyBroker
rqueue                    the front for rqueue
ttp                       the broker's front for TTP v2: its limits, its connections, its counters
ttp_connection            one connection of the TTP front: the frames that its peer sends, and the answers
ttp_frames                messages as TTP's frames, and the fields of TTP that are kept with a message
ttp_sender                the sending half of a TTP connection
ttp_sinks                 sinks for the data of a frame that come in pieces
ttp_streams               streams of TTP: frames with one stream id and one topic, up to the one with EOF
"""
