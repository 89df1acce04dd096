#!/usr/bin/env bash
# efficc data: what it says of files in each format, with tokenizers of each kind, and of files that a trainer would refuse.
efficc=$1/efficc
. "$(dirname "$0")/../counts.sh"
cd "$(dirname "$0")/../tokenize"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

says() { # name, exit code, lines that must be there (each by itself), command..
    local name=$1 code=$2 lines=$3 got=0 ok=1
    shift 3
    "$@" >"$dir/said" 2>&1 || got=$?
    [ "$got" = "$code" ] || ok=0
    while IFS= read -r line; do
        [ -z "$line" ] || grep -qF -- "$line" "$dir/said" || { ok=0 && echo "$name: missing: $line"; }
    done <<<"$lines"
    check "$name: exit code $got" [ $ok = 1 ]
    [ $ok = 1 ] || cat "$dir/said"
}

cat >"$dir/cls.jsonl" <<'END'
{"input_ids": [2, 70, 75, 3], "labels": 1}
{"input_ids": [2, 6, 37, 38, 3], "label": 0, "text": "unused"}
{"input_ids": [2, 3], "labels": 1}
END
cat >"$dir/lm.jsonl" <<'END'
{"input_ids": [42, 270, 205, 92], "labels": [-100, -100, 205, 92]}
{"input_ids": [134, 109, 227, 309]}
{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}
END
printf '{"input_ids": [1, 2], "labels": [0.5, null]}\n{"input_ids": [3], "labels": [2, -1]}\n' >"$dir/values.jsonl"
printf '\1\0\2\0\3\0\4\0\5\0' >"$dir/stream.bin"
printf '{"input_ids": [1, 2, 3]}\n{"input_ids": [1, -5]}\n{"input_ids": []}\n' >"$dir/bad.jsonl"
cat >"$dir/pieces.json" <<'END'
{"model": {"type": "Unigram", "vocab": [["<unk>", 0], ["\u2581a", -1], ["\u2581dog", -2], ["<0xC3>", -3], ["<0xA9>", -3], ["s", -1]]},
 "decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}}
END
printf '{"input_ids": [1, 2, 5, 3, 4, 3]}\n' >"$dir/pieces.jsonl"

says "classes" 0 "data      $dir/cls.jsonl: JSONL: 3 rows, 11 tokens
lengths   least 2, median 4, 95 % up to 5, most 5, mean 3.7
               2 .. 2      ######################################## 1
padding   54.2 % of a batch at --seq 8
labels         0   33.3 %  1
               1   66.7 %  2
row 1     4 tokens, label 1
          [CLS] be dog [SEP]
          [CLS] bab [SEP]" "$efficc" data "$dir/cls.jsonl" --task seq-cls --seq 8 --tokenizer word/vocab.txt
says "causal, bytes" 0 "learnt    5 of 11 tokens (45.5 %)
          nothing in 1 rows
ids       largest 309, below 360
          Dat\nv
          learnt: \nv
          é Pa" "$efficc" data "$dir/lm.jsonl" --task causal-lm --tokenizer bpe
says "labels of tokens" 0 "learnt    2 of 11 tokens
row 3     3 tokens
          1 2 3" "$efficc" data "$dir/lm.jsonl"
says "a few rows" 0 "row 1     4 tokens" "$efficc" data "$dir/lm.jsonl" --rows 1
says "pieces" 0 "           a dogsé\xc3" "$efficc" data "$dir/pieces.jsonl" --tokenizer "$dir/pieces.json"
says "values" 0 "labels    3 numbers: least -1, mean 0.5, most 2; 1 null
row 1     2 tokens, label 0.5 null" "$efficc" data "$dir/values.jsonl" --task regression
says "stream" 0 "data      $dir/stream.bin: nanoGPT tokens, uint16: 3 rows, 5 tokens
          rows have no labels; a causal language model learns its ids: --task causal-lm
row 3     1 tokens" "$efficc" data "$dir/stream.bin" --seq 2
says "several files, with weights" 0 "          $dir/pieces.jsonl: JSONL: 1 rows, 6 tokens; weight 1: 1 rows of an epoch
          2 files: 2 rows, 11 tokens" "$efficc" data "$dir/stream.bin:1" "$dir/pieces.jsonl:1" --seq 6 --no-rows
says "JSON" 0 '"supervised": 2, "unlearnt_rows": 2, "largest_id": 309
"lengths": {"least": 3, "median": 4, "p95": 4, "most": 4, "mean": 3.666666666666666' "$efficc" data "$dir/lm.jsonl" --json
"$efficc" data "$dir/lm.jsonl" --json --tokenizer bpe >"$dir/json"
if command -v python3 >/dev/null; then
    says "JSON is JSON" 0 "" python3 -m json.tool "$dir/json"
else
    skipped=$((skipped + 1))
fi

says "bad rows" 1 "$dir/bad.jsonl:2: input_ids[1] is -5
$dir/bad.jsonl:3: input_ids is empty" "$efficc" data "$dir/bad.jsonl"
says "ids of another tokenizer" 1 "input_ids[1] is 270, but the model knows token ids 0 to 99" "$efficc" data "$dir/lm.jsonl" --vocab 100
says "rows that are too long" 1 "has 5 tokens" "$efficc" data "$dir/cls.jsonl" --seq 4
says "labels of another task" 1 "labels" "$efficc" data "$dir/cls.jsonl" --task causal-lm
says "no such task" 1 "--task: 'magic' is not causal-lm" "$efficc" data "$dir/cls.jsonl" --task magic
says "no such file" 1 "nowhere.jsonl: No such file" "$efficc" data nowhere.jsonl
says "no tokenizer" 1 "--tokenizer: nowhere" "$efficc" data "$dir/cls.jsonl" --tokenizer nowhere
says "no vocabulary" 1 "it is no tokenizer.json" "$efficc" data "$dir/cls.jsonl" --tokenizer bpe/tokenizer_config.json
closed() { "$efficc" data "$dir/cls.jsonl" >&-; }
says "output is closed" 1 "standard output: not everything could be written" closed
says "nothing given" 1 "no file given" "$efficc" data
counts
