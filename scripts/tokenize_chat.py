"""How the turns of a chat are written as one text: part of tokenize.py.

A template is a function from messages, [{"role", "content"}], to pieces (text, learnt); the text of the row is all of them together.
"""
import json
import os
import re

from tokenize_out import Problem

FROM, TO = "\ue0f0", "\ue0f1"  # around what is learnt, while a template of the tokenizer runs; characters for private use
TEMPLATES = ("chatml", "llama-3", "plain", "tokenizer")


def chatml(messages):
    for m in messages:
        yield f"<|im_start|>{m['role']}\n", False
        yield f"{m['content']}<|im_end|>", m["role"] == "assistant"
        yield "\n", False


def llama3(messages):
    yield "<|begin_of_text|>", False
    for m in messages:
        yield f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n", False
        yield f"{m['content'].strip()}<|eot_id|>", m["role"] == "assistant"


def plain(messages):
    for m in messages:
        yield f"{m['role']}:", False
        yield f" {m['content']}\n", m["role"] == "assistant"


def by_marks(text):
    """A template that marks what the assistant generates, as transformers has it."""
    for i, part in enumerate(re.split(f"{FROM}(.*?){TO}", text, flags=re.S)):
        yield part, i % 2 == 1


def by_turns(messages, render):
    """A template without marks: a turn of the assistant is what it adds to the text that asks for it."""
    done = ""
    for i, m in enumerate(messages):
        if m["role"] != "assistant":
            continue
        before, after = render(messages[:i], True), render(messages[:i + 1], False)
        if not before.startswith(done) or not after.startswith(before):
            raise Problem("the tokenizer's chat_template writes a turn differently once others follow, so what is learnt can't be told from "
                          "the rest")
        yield before[len(done):], False
        yield after[len(before):], True
        done = after
    whole = render(messages, False)
    if not whole.startswith(done):
        raise Problem("the tokenizer's chat_template writes a turn differently once others follow")
    yield whole[len(done):], False


def own_template(tokenizer):
    """The template that came with the tokenizer, as Hugging Face runs it: needs jinja2."""
    if not tokenizer.folder:
        raise Problem("--template tokenizer: --tokenizer must be a folder with a tokenizer_config.json")
    text = tokenizer.config.get("chat_template")
    if isinstance(text, list):
        text = next((t.get("template") for t in text if t.get("name") == "default"), None)
    beside = os.path.join(tokenizer.folder, "chat_template.jinja")
    if not text and os.path.exists(beside):
        with open(beside, encoding="utf-8") as f:
            text = f.read()
    if not text:
        raise Problem(f"{tokenizer.folder} has no chat_template; choose --template {', '.join(TEMPLATES[:-1])}")
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise Problem("--template tokenizer needs Python's package jinja2: pip install jinja2") from None

    def refuse(message):
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = refuse
    marked = re.search(r"{%-?\s*generation\s*-?%}", text)
    for word, mark in ("generation", FROM), ("endgeneration", TO):
        text = re.sub(r"{%(-?)\s*" + word + r"\s*(-?)%}", r"{%\1 if true %}" + mark + r"{% endif \2%}", text)
    tokens = {k: tokenizer.named(k) or "" for k in ("bos_token", "eos_token", "pad_token", "unk_token")}
    try:
        template = env.from_string(text)
    except TemplateError as e:
        raise Problem(f"the tokenizer's chat_template: {e}") from None

    def render(messages, ask):
        try:
            return template.render(messages=messages, add_generation_prompt=ask, **tokens)
        except Exception as e:  # a template can raise anything
            raise Problem(f"the tokenizer's chat_template: {e}") from None

    return (lambda messages: by_marks(render(messages, False))) if marked else (lambda messages: by_turns(messages, render))


def template_of(name, tokenizer):
    if name == "tokenizer":
        return own_template(tokenizer)
    marks = {"chatml": ["<|im_start|>", "<|im_end|>"], "plain": [],
             "llama-3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]}
    for mark in marks[name]:
        tokenizer.id(mark, f"--template {name} writes")
    return {"chatml": chatml, "llama-3": llama3, "plain": plain}[name]
