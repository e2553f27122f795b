"""The broker over HTTP: health, metrics, operators' calls. Only this package uses aiohttp.

admin               routes by which operators handle dead letters and read the audit
app                 the application that aiohttp serves: health and metrics for all, the rest for operators
authentication      authenticates HTTP requests by a certificate or a token
connection_guard    limits HTTP connections that no request has authenticated yet: their number and their time
console             serves the console: one page, its script and its stylesheet, from this package's folder
error_response      error responses, `{"error": CODE, "message": TEXT}`, and the headers of all responses
health              finds problems of a running broker
request_head_limit  limits a request's whole head: aiohttp limits only each line of it
request_log         logs aiohttp's errors: one line for bytes that are no request, at a bounded rate
request_params      reads and checks the members of a request's query or body
server              the broker's HTTP server, on the broker's own loop
status_routes       serves the broker's state
topic_routes        routes by which operators change topics and groups
"""
