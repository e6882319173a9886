# Reads a documentation page. check-docs.sh calls this twice: to get the SQL of the page, and to put what
# the SQL has printed into the page.
#
#   awk -f docs.awk PAGE              the page's ```sql blocks, as one script for psql
#   awk -v output=FILE -f docs.awk PAGE  the page, with what psql has printed in its ```text blocks
#
# If a ```text block follows a ```sql block, with only empty lines between them, it shows what psql prints
# for the ```sql block. A ```sql block whose first line is "-- refused" must print an error.

function refused(line) { return line ~ /^-- refused/ }

BEGIN {
  while (output != "" && (getline line < output) > 0) {
    sub(/[ \t]+$/, "", line)
    if (line ~ /^@@ [0-9]+$/) at = substr(line, 4)
    else printed[at] = printed[at] line "\n"
  }
}

output != "" && state != "text" { print }

state == "sql" && /^```$/ {
  if (is_refused && output == "") print "\\set ON_ERROR_STOP on"
  if (is_refused && output != "" && printed[block] !~ /(^|\n)ERROR:/) {
    print FILENAME ":" block ": nothing was refused" >"/dev/stderr"
    status = 1
  }
  state = "after"
  next
}
state == "sql" {
  if (FNR == block + 1 && (is_refused = refused($0)) && output == "") print "\\set ON_ERROR_STOP off"
  if (output == "") print
  next
}
state == "text" {
  if (!/^```$/) next
  sub(/\n+$/, "\n", printed[block])
  if (output != "") printf "%s%s\n", printed[block], $0
  state = ""
  next
}
state == "other" { if (/^```/) state = ""; next }

/^```sql$/ {
  state = "sql"
  block = FNR
  is_refused = 0
  if (output == "") print "\\echo '@@ " block "'"
  next
}
/^```text$/ && state == "after" { state = "text"; next }
/^```/ { state = "other"; next }
/[^ \t]/ { state = "" }

END {
  if (state == "sql" || state == "text" || state == "other") {
    print FILENAME ": a block is not closed" >"/dev/stderr"
    status = 1
  }
  exit status
}
