#!/usr/bin/env bash
# The table of families and exporters in docs/onnx-support.md is that of docs/families.md, which load_in_torch.py measured, turned round.
#
#   families_test.sh BUILD           compares
#   families_test.sh BUILD --bless   writes it
set -euo pipefail
cd "$(dirname "$0")/../.."
page=docs/onnx-support.md
table() {
    awk -F' *[|] *' '
    function mark(whole, lora) { return whole == "ok" && lora == "ok" ? "yes" : whole == "ok" ? "whole" : "no" }
    /^\| [a-z0-9-]+ \| [a-z0-9-]+ \| / && $2 !~ /^(family|---)$/ {
        if (!($2 in seen)) order[++n] = $2
        seen[$2] = 1
        if ($3 ~ /^(legacy14|legacy17|dynamo|dynamo-op23|optimum|optimum-past)$/)
            cell[$2, $3] = mark($4, $5)
        else {
            m = mark($4, $5)
            more[$2] = more[$2] (more[$2] ? ", " : "") $3 (m == "yes" ? "" : m == "whole" ? " (no adapters)" : " (refused)")
        }
    }
    END {
        print "| family | legacy 14 | legacy 17 | dynamo | dynamo, opset 23 | optimum | with past | other files |"
        print "| --- | --- | --- | --- | --- | --- | --- | --- |"
        split("legacy14 legacy17 dynamo dynamo-op23 optimum optimum-past", col, " ")
        for (i = 1; i <= n; i++) {
            line = "| " order[i]
            for (c = 1; c <= 6; c++) line = line " | " cell[order[i], col[c]]
            print line " | " more[order[i]] " |"
        }
    }' docs/families.md | sed 's/|  |/| |/g; s/|  |/| |/g'
}
begin='<!-- families: written by tests/tools/families_test.sh BUILD --bless -->' end='<!-- end of families -->'
if [ "${2:-}" = --bless ]; then
    awk -v b="$begin" -v e="$end" -v t="$(table)" '$0 == b { print; print t; skip = 1 } $0 == e { skip = 0 } !skip' $page >$page.new
    mv $page.new $page
fi
if [ "$(awk -v b="$begin" -v e="$end" '$0 == e { on = 0 } on; $0 == b { on = 1 }' $page)" = "$(table)" ] && [ "$(table | wc -l)" -gt 12 ]; then
    echo "1 passed, 0 failed, 0 skipped"
else
    echo "$page: the table of families is not that of docs/families.md; write it with: $0 $1 --bless"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
