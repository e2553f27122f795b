"""Endpoints that stand for many: a name service lists the members, and connections follow the list.

For a broker's registry see `transfer.broker.clients`.

directory   the interface of a name service
dns         queries DNS for all addresses of a name, with their time to live
liveness    detects a vanished host, of which no packet informs: it has lost power, or its cable is unplugged
membership  the members of a name, from the answers of a name service; and the time of the next query
"""
