# PEER SECONDS-TO-WAIT GBIT/S SECONDS-TO-MEASURE
# The doctor waits 10 s, and the other pod may take longer to start: status 3 is a timeout.
end=$((SECONDS + $2))
while [ $SECONDS -lt $end ]; do
  transfer req --connect "tcp://$1:5591" --timeout 5 --data ping --quiet >/dev/null && break
  [ $? -eq 3 ] || break
done
exec transfer doctor --peer "$1:7590" --min-gbps "$3" --seconds "$4"
