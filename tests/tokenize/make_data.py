#!/usr/bin/env python3
"""Makes what tokenize_test.sh compares with: two tokenizers of a few hundred tokens, and rows as transformers makes them.

    python make_data.py        needs tokenizers, transformers and jinja2; made with transformers 4.57.6, tokenizers 0.22.2

bpe/ is a byte-level BPE with the marks of ChatML and Llama 3 and a chat_template (bpe-unmarked/: without marks of what is learnt), word/vocab.txt BERT's WordPiece. golden.json: a list of
{name, args, input, rows}: what scripts/tokenize.py must write for the rows of `input` under `args`.
"""
import json
import os
import re

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = """The cat sat on the mat, and the dog looked at it. A film can be moving, witty or dull; this one is not dull at all.
What is the capital of France? The capital of France is Paris. How much is two and two? Two and two is four.
user: system: assistant: you are a helpful assistant. def f(x): return x + 1
""".splitlines()
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHATML = ("{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{%- if m['role'] == 'assistant' %}{% generation %}"
          "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{%- else %}{{ m['content'] + '<|im_end|>' }}{%- endif %}{{ '\\n' }}"
          "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}")
LLAMA3 = ("{{ '<|begin_of_text|>' }}{%- for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
          "{%- if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
          "{%- else %}{{ m['content'] | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}")
CHATS = [[{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "What is the capital of France?"},
          {"role": "assistant", "content": "Paris."}],
         [{"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": " Four, é 漢字 🙂 "},
          {"role": "user", "content": "Sure?\n\nReally?"}, {"role": "assistant", "content": "Yes:\n  return 4\n"}]]
PROMPTS = [{"prompt": "The capital of France is", "completion": " Paris."}, {"prompt": "Q: two and two?\nA:", "completion": " four\n"},
           {"prompt": "é", "completion": "漢字 cat"}]


def make_bpe():
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=[AddedToken(m, special=True) for m in MARKS])
    tok.train_from_iterator(TEXT, trainer)
    for name, template in ("bpe", CHATML), ("bpe-unmarked", re.sub("{% (end)?generation %}", "", CHATML)):
        folder = os.path.join(HERE, name)
        os.makedirs(folder, exist_ok=True)
        tok.save(os.path.join(folder, "tokenizer.json"), pretty=False)
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"eos_token": "<|endoftext|>", "chat_template": template}, f, indent=1)
    folder = os.path.join(HERE, "bpe")
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), eos_token="<|endoftext|>")


def make_word():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list("abcdefghijklmnopqrstuvwxyz.,?;:!") + ["##" + c for c in "abcdefghijklmnopqrstuvwxyz"]
    words += sorted({w.strip(".,?;:()").lower() for line in TEXT for w in line.split()} - set(words) - {""})
    folder = os.path.join(HERE, "word")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "vocab.txt"), "w") as f:
        f.write("\n".join(words) + "\n")
    return BertTokenizerFast(vocab_file=os.path.join(folder, "vocab.txt"), do_lower_case=True)


def chat_row(tok, messages, template):
    e = tok.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return {"input_ids": e["input_ids"], "labels": [i if m else -100 for i, m in zip(e["input_ids"], e["assistant_masks"])]}


def prompt_row(tok, row):
    prompt, whole = tok(row["prompt"])["input_ids"], tok(row["prompt"] + row["completion"])["input_ids"]
    assert whole[:len(prompt)] == prompt
    whole.append(tok.eos_token_id)
    return {"input_ids": whole, "labels": [-100] * len(prompt) + whole[len(prompt):]}


def last_only(row):
    """Only the last run of labels stays."""
    labels = row["labels"]
    end = max(i for i, x in enumerate(labels) if x != -100) + 1
    start = max((i for i in range(end) if labels[i] == -100), default=-1) + 1
    return {**row, "labels": [x if start <= i < end else -100 for i, x in enumerate(labels)]}


def main():
    bpe, word = make_bpe(), make_word()
    cases = []
    add = lambda name, args, data, rows: cases.append({"name": name, "args": args, "input": data, "rows": rows})
    chats = [{"messages": c} for c in CHATS]
    chatml = [chat_row(bpe, c, CHATML) for c in CHATS]
    add("chatml", ["--tokenizer", "bpe", "--template", "chatml"], chats, chatml)
    add("chatml, last turn", ["--tokenizer", "bpe", "--template", "chatml", "--train-on", "last"], chats, [last_only(r) for r in chatml])
    add("own template", ["--tokenizer", "bpe", "--template", "tokenizer"], chats, chatml)
    bare = {"messages": [m for m in CHATS[0] if m["role"] != "system"]}
    turns = chat_row(bpe, bare["messages"], CHATML)
    turns["labels"][-1] = turns["input_ids"][-1]  # without marks the newline belongs to the turn
    add("own template without marks", ["--tokenizer", "bpe-unmarked", "--template", "tokenizer"], [bare], [turns])
    add("llama-3", ["--tokenizer", "bpe/tokenizer.json", "--template", "llama-3"], chats, [chat_row(bpe, c, LLAMA3) for c in CHATS])
    add("prompts", ["--tokenizer", "bpe", "--append-eos"], PROMPTS, [prompt_row(bpe, r) for r in PROMPTS])
    lines = [line for line in TEXT if line]
    add("lines", ["--tokenizer", "bpe", "--append-eos"], lines, [{"input_ids": bpe(t)["input_ids"] + [bpe.eos_token_id]} for t in lines])
    data = [{"text": t, "other": "Is it Paris or not?", "label": ["bad", "good"][i % 2]} for i, t in enumerate(lines)]
    add("classes", ["--tokenizer", "word/vocab.txt", "--lowercase", "--label-field", "label", "--labels", "bad,good", "--max-length", "12"], data,
        [{"input_ids": word(r["text"], truncation=True, max_length=12)["input_ids"], "labels": i % 2} for i, r in enumerate(data)])
    pairs = [word(r["text"], r["other"], truncation=True, max_length=24) for r in data]
    add("pairs", ["--tokenizer", "word", "--lowercase", "--text-pair-field", "other", "--max-length", "24"], data,
        [{"input_ids": e["input_ids"], "token_type_ids": e["token_type_ids"]} for e in pairs])
    with open(os.path.join(HERE, "golden.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
