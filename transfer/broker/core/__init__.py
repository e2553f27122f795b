"""The broker's decisions, without I/O: topics, routes, subscriptions, deliveries, admission.

admission           admission for direct delivery: which messages the broker takes, and how many may wait
delivery            a delivery, one attempt to deliver a message to a consumer, and the time of the next one
departed_consumers  subscriptions of consumers that disconnected a moment ago, and may be restarting
dispatch            the steps of direct delivery
dispatcher          the dispatcher of direct delivery
dispatcher_actions  the requests that the dispatcher takes, and the actions that it returns
dispatcher_events   the events of direct delivery, and how they are encoded in the log
groups              the state of a consumer group of one topic: held, done and failed messages
in_flight           deliveries that consumers hold, and the last acknowledgements
message             a message as the broker knows it, from any protocol
offsets             a set of offsets, stored as ranges: with few gaps, many offsets take little memory
pattern_index       finds the patterns of all kinds that match a topic
pattern_shapes      finds patterns of one kind with wildcards by topic
priority_queue      a queue with classes of priority that share by weight, in order within each class
refusal_reasons     classifies why a TLS connection failed, as a constant word for counts
registry            the state of a broker's registry
registry_types      what programs ask of a registry, and what it answers
routes              routes by tenant and topic, and their order of precedence
session_routes      the dispatcher's view of the routes, with the routes of its sessions
sessions            consumers of direct delivery, their sessions and capabilities
subscriptions       the subscriptions of one subscriber, and their limits
timers              timers by key: a heap whose stale entries do not pile up
topic_names         topics on the wire: text of 1 to 255 bytes
topic_patterns      topics and patterns: their syntax, and which topics a pattern matches
waiting_messages    messages of direct delivery that wait for their consumer
"""
