# json.sh -- what run.sh found, as one JSON and in words; run.sh sources this.

# stdin as a string of JSON.
json_text() {
    printf '"%s"' "$(tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' | paste -sd ' ' -)"
}

commit() {
    git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown
}

write_json() {
    printf '{\n"date": "%s",\n"commit": "%s",\n"changed": %s,\n"seconds": %d,\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(commit)" \
        "$(git -C "$root" diff --quiet HEAD 2>/dev/null && echo false || echo true)" $((SECONDS - started))
    printf '"virtual": %s,\n"machine": {' "$([ "$virtual" ] && echo true || echo false)"
    local key value comma=''
    while read -r key value; do
        printf '%s"%s": %s' "$comma" "${key//[^a-z_]/_}" "$(json_text <<<"$value")"
        comma=', '
    done < <(grep -v "^no device" "$card")
    printf '},\n"tests": ['
    comma=''
    while IFS=$'\t' read -r part name result seconds note; do
        printf '%s\n {"part": "%s", "name": "%s", "result": "%s", "seconds": %s, "note": %s}' "$comma" "$part" "$name" "$result" "$seconds" \
            "$(json_text <<<"$note")"
        comma=,
    done <"$results"
    printf '],\n"benchmarks": [\n'
    paste -sd '~' "$bench" | sed 's/}~{/},\n{/g'
    printf '],\n"skipped": ['
    comma=''
    while IFS=$'\t' read -r name why; do
        printf '%s\n {"what": %s, "why": %s}' "$comma" "$(json_text <<<"$name")" "$(json_text <<<"$why")"
        comma=,
    done <"$skips"
    printf ']\n}\n'
}

# After each part: what is known stands there, if the whole is ended from outside. Beside it, what failed tests and all benchmarks said.
save() {
    {
        cat "$work"/*.failed
        tail -n 100 "$work"/*.said "$work"/run-*.log "$work"/prepare.log
    } >"${json%.json}.log" 2>/dev/null
    write_json >"$json.part" && mv "$json.part" "$json"
}

summary() {
    echo "== skipped"
    { awk -F '\t' '$3 == "skipped" { print $1 " " $2 "\t" $5 }' "$results"; cat "$skips"; } | sed 's/\t/: /'
    echo "== failed"
    awk -F '\t' '$3 == "failed" { print $1 " " $2 ": " $5 }' "$results"
}
