#!/bin/sh
# Runs in the container of scripts/deploy: makes a token, sends a message to the service, and stops it.
set -u
token=$(setpriv --reuid=a2a --regid=a2a --clear-groups a2a token new operator --file /var/lib/a2a/tokens)
systemctl restart a2a
for _ in $(seq 100); do
    a2a send 127.0.0.1:8080 hello -o json --token "$token" >/result/answer 2>&1 && break
    sleep 0.2
done
# The text of the artifact.
grep -o '"text": "Python got.*' /result/answer | sed -e 's/.*"text": "//' -e 's/\\n/\n/g' -e 's/\\t/\t/g'
systemctl --no-pager --full status a2a
systemctl stop a2a
systemctl show a2a --property=Result --property=ExecMainStatus
