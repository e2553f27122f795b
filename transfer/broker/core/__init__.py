"""What the broker decides, without I/O: topics, routes, subscriptions, deliveries, who may send how much."""
