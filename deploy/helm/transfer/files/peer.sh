# WHERE-TO-LISTEN
# The other side of `helm test`: answers requests, receives, and serves measurements. Three programs in one
# container, since each container would need a separate device; if one of them ends, all end.
transfer rep --bind "tcp://$1:5591" --quiet &
transfer pull --bind "tcp://$1:5592" --quiet --raw >/dev/null &
transfer doctor --serve "tcp://$1:7590" &
trap 'kill $(jobs -p)' TERM
wait -n
kill $(jobs -p)
exit 1
