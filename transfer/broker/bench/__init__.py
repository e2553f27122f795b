"""Implements `transfer bench broker`: starts processes that load a broker, and measures it.

figures      latencies and results of a measurement
measurement  runs one measurement: starts processes that load a broker, and combines their results
pacing       limits the messages in flight of publishers
payloads     the payloads of a measurement: a head with time, measurement and publisher, and padding
plan         the plan of one measurement of a broker
processes    runs the roles of a measurement in processes, and exchanges messages with them
roles        the roles of processes: publishers and receivers
target       the measured broker: it runs already, or is started in a process
usage        reads the resources that a process has used: from `/proc`, from within, or from its metrics
"""
