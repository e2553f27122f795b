"""Who gets a message: topics, groups, subscribers, direct delivery, dead letters. On the broker's loop."""
