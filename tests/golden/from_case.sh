#!/bin/sh
# Makes a golden input from a real export: its embeddings and first layer, as imported.
#
#     from_case.sh BUILD MODEL.onnx [BATCH SEQ] >tests/golden/recognise/NAME.ir
#
# Weights become zeros, since passes do not look at them; what is const stays as it is.
build=${1:?usage: from_case.sh BUILD MODEL.onnx [BATCH SEQ]}
model=${2:?model}
"$build/efficc" "$model" --batch "${3:-2}" --seq "${4:-4}" --stop-after=import --quiet |
awk '
    /^meta model/ { next }
    /^param/ { gsub(/ file [a-z0-9]+ "[^"]*" [0-9]+/, " zero"); gsub(/  !".*/, ""); param[++np] = $0; next }
    /^unit/ { split($0, u, " "); if (u[2] < 2) print; next }
    /^func/ { infunc = 1; body[++nb] = $0; next }
    infunc && /^@/ { keep = / unit=[01]$/ }
    infunc && /^  ret/ { next }
    infunc && /^}/ { next }
    infunc { if (keep) { body[++nb] = $0; if ($1 ~ /^%/) last = $1 } next }
    { print }
    END {
        sub(/,$/, "", last)
        text = ""
        for (i = 1; i <= nb; i++) text = text body[i] "\n"
        for (i = 1; i <= np; i++) {
            split(param[i], w, " ")
            p = w[2]
            at = index(text, p " "); at2 = index(text, p ","); at3 = index(text, p "\n")
            if (at || at2 || at3) print param[i]
        }
        printf "\n%s  ret %s\n}\n", text, last
    }' | sed '1s/^/; run: --run-pass=canon,recognise --quiet\n/'
