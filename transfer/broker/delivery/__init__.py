"""Delivery of messages on the broker's loop: topics, groups, subscribers, direct delivery, dead letters."""
