#!/bin/sh
# Runs a command and passes SIGTERM to its whole process group, which it also does when builder is killed:
# mmdebstrap alone would wait for its children before it removes its tree.
exec 3<&0
trap 'trap : TERM; kill 0' TERM
"$@" <&3 &
wait $!
code=$?
while kill -0 $! 2>/dev/null; do
    wait $!
    code=$?
done
exit $code
