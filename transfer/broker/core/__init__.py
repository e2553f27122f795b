"""The broker's decisions, without I/O: topics, routes, subscriptions, deliveries, admission."""
