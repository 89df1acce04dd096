/* cmd_data_tokens.c -- ids as text, by the table of a tokenizer alone.
 *
 * There are three ways to write pieces of text as tokens: words, with "##" before what goes
 * on with one (BERT's WordPiece); bytes, each as a printable character (GPT-2's BPE); and
 * text in which U+2581 stands for a blank and <0x0A> for a byte (SentencePiece). Which one it
 * is, tokenizer.json says in its decoder; a vocab.txt has words.
 */
#include "cmd_data.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_MAX = 1 << 28, IDS_MAX = 1 << 24 };

/* ---- tables ---- */

static int
read_vocab(ef_arena *a, char *text, cmd_tokens *t)
{
    EF_VEC(const char *) lines = {0};
    for (char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        size_t n = (size_t)(end - line);
        n -= n && line[n - 1] == '\r';
        ef_push(a, lines, ef_strndup(a, line, n));
        end += *end == '\n';
    }
    t->n = lines.n;
    t->text = lines.at;
    t->how = CMD_WORDS;
    return RT_OK;
}

/* Does any "type" below the item have the value? */
static bool
has_type(const cJSON *item, const char *type)
{
    const cJSON *child;
    cJSON_ArrayForEach(child, item)
    {
        const char *s = cJSON_GetStringValue(child);
        if (s && child->string && !strcmp(child->string, "type") && !strcmp(s, type))
            return true;
        if (has_type(child, type))
            return true;
    }
    return false;
}

static const char *
put_token(ef_arena *a, cmd_tokens *t, double id, const char *text)
{
    if (!text || !(id >= 0 && id < IDS_MAX && id == (double)(int64_t)id))
        return "has an entry without a token or id";
    int64_t at = (int64_t)id;
    if (at >= t->cap) {
        int64_t more = 2 * at + 1024;
        const char **wide = EF_NEWN(a, const char *, more);
        if (t->n)
            memcpy(wide, t->text, sizeof *wide * (size_t)t->n);
        t->text = wide;
        t->cap = more;
    }
    t->text[at] = ef_strdup(a, text);
    t->n = at >= t->n ? at + 1 : t->n;
    return NULL;
}

/* NULL, or what is wrong. */
static const char *
read_json(ef_arena *a, const cJSON *json, cmd_tokens *t)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model"), *item;
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    const cJSON *decoder = cJSON_GetObjectItemCaseSensitive(json, "decoder");
    const char *wrong = cJSON_IsObject(vocab) || cJSON_IsArray(vocab)
                            ? NULL
                            : "has no model.vocab: it is no tokenizer.json";
    double id = 0;
    cJSON_ArrayForEach(item, vocab) /* {token: id}, or [[token, score], ..] */
    {
        bool list = cJSON_IsArray(item);
        if (!wrong)
            wrong = put_token(a, t, list ? id++ : item->valuedouble,
                              list ? cJSON_GetStringValue(item->child) : item->string);
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json, "added_tokens"))
    {
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(item, "id");
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(item, "content");
        if (!wrong)
            wrong = put_token(a, t, cJSON_IsNumber(number) ? number->valuedouble : -1,
                              cJSON_GetStringValue(text));
    }
    t->how = has_type(decoder, "ByteLevel")   ? CMD_BYTES
             : has_type(decoder, "WordPiece") ? CMD_WORDS
                                              : CMD_PIECES;
    return wrong;
}

int
cmd_tokens_open(ef_arena *a, const char *path, cmd_tokens *t)
{
    struct stat st;
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) {
        const char *json = ef_printf(a, "%s/tokenizer.json", path);
        path = stat(json, &st) ? ef_printf(a, "%s/vocab.txt", path) : json;
    }
    size_t n;
    char *text = ef_read_file(a, path, FILE_MAX, &n);
    if (!text)
        return rt_fail(RT_USER, "--tokenizer: %s: %s", path, strerror(errno));
    size_t k = strlen(path);
    if (k < 5 || strcmp(path + k - 5, ".json"))
        read_vocab(a, text, t);
    else {
        cJSON *json = cJSON_Parse(text);
        const char *wrong = json ? read_json(a, json, t) : "is not JSON";
        cJSON_Delete(json);
        if (wrong)
            return rt_fail(RT_USER, "--tokenizer: %s %s", path, wrong);
    }
    return t->n ? RT_OK : rt_fail(RT_USER, "--tokenizer: %s holds no tokens", path);
}

/* ---- text ---- */

/* The character at s and its bytes; *n 0: it is not UTF-8. */
static uint32_t
character(const char *s, int *n)
{
    const unsigned char *p = (const unsigned char *)s;
    int more = p[0] < 0x80 ? 0 : p[0] >= 0xf0 ? 3 : p[0] >= 0xe0 ? 2 : 1;
    uint32_t c = more ? p[0] & (0x3fu >> more) : p[0];
    *n = 0;
    if (more && (p[0] < 0xc2 || p[0] > 0xf4))
        return 0;
    for (int i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    bool surrogate = c >= 0xd800 && c < 0xe000;
    *n = c < least[more] || surrogate || c > 0x10ffff ? 0 : more + 1;
    return c;
}

/* Byte for which GPT-2 writes the character; -1: for none. Bytes that can be printed stand
 * for themselves, the others have characters from 256 on, in order. */
static int
byte_of(uint32_t c)
{
    static int byte[512];
    if (!byte['!']) {
        int next = 256;
        memset(byte, -1, sizeof byte);
        for (int b = 0; b < 256; b++) {
            bool self = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
            byte[self ? b : next++] = b;
        }
    }
    return c < 512 ? byte[c] : -1;
}

static void
put_bytes(ef_buf *b, const char *s)
{
    for (int n; *s; s += n) {
        int byte = byte_of(character(s, &n));
        char c = (char)byte;
        n = n ? n : 1;
        ef_putn(b, byte < 0 ? s : &c, byte < 0 ? (size_t)n : 1);
    }
}

static void
put_piece(ef_buf *b, const char *s)
{
    static const char blank[] = "\xe2\x96\x81";
    unsigned byte;
    int end = 0;
    if (strlen(s) == 6 && sscanf(s, "<0x%2x>%n", &byte, &end) == 1 && end == 6) {
        char c = (char)byte;
        ef_putn(b, &c, 1);
        return;
    }
    for (const char *at; (at = strstr(s, blank)); s = at + 3) {
        ef_putn(b, s, (size_t)(at - s));
        ef_puts(b, " ");
    }
    ef_puts(b, s);
}

/* Control characters and bytes that are not UTF-8 become escapes. */
static const char *
printable(ef_arena *a, const ef_buf *raw)
{
    ef_buf b = {.arena = a};
    ef_puts(&b, "");
    for (size_t i = 0; i < raw->n;) {
        int n;
        uint32_t c = character(raw->s + i, &n);
        if (c == '\n' && n)
            ef_puts(&b, "\\n");
        else if (!n || c < ' ' || (c >= 0x7f && c < 0xa0))
            ef_putf(&b, "\\x%02x", (unsigned char)raw->s[i]);
        else
            ef_putn(&b, raw->s + i, (size_t)n);
        i += (size_t)(n && c >= 0xa0 ? n : 1);
    }
    return b.s;
}

const char *
cmd_tokens_text(const cmd_tokens *t, ef_arena *a, const int32_t *id, int64_t n)
{
    ef_buf b = {.arena = a};
    for (int64_t i = 0; i < n; i++) {
        const char *s = id[i] >= 0 && id[i] < t->n ? t->text[id[i]] : NULL;
        if (!s)
            ef_putf(&b, "<%d>", id[i]);
        else if (t->how == CMD_BYTES)
            put_bytes(&b, s);
        else if (t->how == CMD_PIECES)
            put_piece(&b, s);
        else if (!strncmp(s, "##", 2) && s[2] && i)
            ef_puts(&b, s + 2);
        else
            ef_putf(&b, "%s%s", i ? " " : "", s);
    }
    return printable(a, &b);
}
