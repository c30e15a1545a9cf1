#!/bin/sh
# manual.sh HELP2MAN OUTPUT PROGRAM PAGE SECTION VERSION SUMMARY [COMMAND]: a manual page from --help.
set -eu
help2man=$1 output=$2 program=$3 page=$4 section=$5 version=$6 summary=$7
shift 7
# help2man runs one program, and names the page after it.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$program" "$*" >"$work/$page"
chmod 755 "$work/$page"
# Not through a pipe, whose failure this shell would not see.
"$help2man" --no-info --no-discard-stderr --section="$section" --name="$summary" \
  --source="deltawire $version" --version-string="$version" --output="$work/made" "$work/$page"
gzip -9nc "$work/made" >"$output"
