"""Delivery of messages on the broker's loop: topics, groups, subscribers, direct delivery, dead letters.

announced            limits on the bytes of payloads that publishers have announced and not sent yet
dead_letter_replay   publishes dead letters again, only for the consumer that could not process them
dead_letter_router   moves messages that no consumer can process to the dead letters
delivery_sink        the interface between direct delivery and the front whose peers are its consumers
dispatcher_driver    drives direct delivery over the log and the database
dispatcher_journal   the journal of direct delivery
fanout               offers each message to its subscribers, and lets slow ones read it from the log later
frame_stream         a stream on its way through the broker: forwards frames as they come
frame_streams        the streams that are published: they forward frames to subscribers
group_activity       when each group was last in use, kept over restarts: groups without consumers may expire
group_contract       the interface of groups: their consumers, and the dead letters of their messages
group_reader         reads the messages that consumers of groups receive, from memory or from the log
groups               consumer groups: delivers messages from the log, and keeps their acknowledgements
hub                  takes messages from the fronts, keeps them, and offers them to all subscribers
loop_calls           calls from operators' threads to the broker's loop, which wait for their end
streaming_publish    a large payload on its way through the broker, forwarded while it arrives
streaming_publishes  the payloads and streams that the broker forwards now, and the receivers of each
subscriber           the base class of subscribers: connections that receive messages as they come
topic_admin          operators' changes to topics and groups: remove, seek, purge
"""
