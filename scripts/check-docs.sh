#!/usr/bin/env bash
# Runs the SQL of a documentation page. Fails if it prints something else than the page shows.
#
#   scripts/check-docs.sh PAGE WORK PSQL...
#
# PSQL is the command that connects to an empty database with the extension. WORK is a directory for the
# script, its output, and the page as it should be. ACCEPT=1 writes the output into the page; read it
# before you commit it. docs.awk says what a page looks like.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }

page=$1
name=$2/$(basename "$page" .md)
shift 2
blocks=$(dirname "${BASH_SOURCE[0]}")/docs.awk

awk -f "$blocks" "$page" >"$name.sql"
# If the page itself creates the extension, start without it.
if grep -q '^CREATE EXTENSION queen_mq' "$name.sql"; then
  "$@" -c 'DROP EXTENSION queen_mq'
fi
status=0
"$@" -v ON_ERROR_STOP=1 <"$name.sql" >"$name.log" 2>&1 || status=$?
if [ $status != 0 ]; then
  cat "$name.log"
  echo "$page: psql ended with status $status"
  exit 1
fi
awk -v output="$name.log" -f "$blocks" "$page" >"$name.md"
[ -z "${ACCEPT:-}" ] || cp "$name.md" "$page"
diff -u "$page" "$name.md"
