/* data_jsonl.c -- JSONL files: a row is an object on a line,
 * {"input_ids": [..], "attention_mask": [..], "labels": [..] or a number, ..}.
 *
 * Every line is parsed once, by threads that take pieces of the file (whole lines) in turn
 * and, in the same order, put what they made of them: records into the spool, faults behind
 * the lines that came before. So rows, line numbers and messages do not depend on the
 * number of threads.
 */
#include "data_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { PIECE = 256 << 10, LONGEST = 256 << 20, MOST_THREADS = 16 };

typedef struct piece { /* some lines, and what was made of them */
    int64_t number;
    char *text;
    size_t n, cap;
    rt_text record, size; /* records; uint32 bytes of each */
    rt_found found;
    rt_json json;
    rt_row row;
} piece;

typedef struct jsonl {
    rt_loading *l;
    const rt_data_spec *spec;
    const char *path;
    int fd;
    int64_t size, done; /* bytes; size 0: unknown */
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int64_t taken, turn; /* pieces that were taken, that were put */
    rt_text rest;        /* of the bytes read: what follows the last line end */
    bool end;
    int64_t lines; /* before the piece whose turn it is */
    rt_faults faults;
    rt_progress bar;
    XXH3_state_t *hash;
    int code;
} jsonl;

/* ---- a line ---- */

static void
add_record(piece *p)
{
    uint32_t n = (uint32_t)rt_row_size(&p->row);
    rt_put(&p->record, p->row.memory, n);
    rt_put(&p->size, &n, sizeof n);
}

static void
not_json(piece *p, const char *line, const char *why, size_t column)
{
    size_t blank = strspn(line, " \t");
    if (line[blank] == '[')
        rt_faults_add(&p->found.faults, p->found.line,
                      "is a JSON list; JSONL has one object a line");
    else if (line[blank] == '{')
        rt_faults_add(&p->found.faults, p->found.line,
                      "is not JSON (column %zu: %s); one whole object must stand on "
                      "the line (and NaN is not JSON)",
                      column, why);
    else
        rt_faults_add(&p->found.faults, p->found.line, "is not a JSON object: '%.20s'",
                      line + blank);
}

/* line[n] is a byte that may be written. */
static void
check_line(const rt_data_spec *spec, piece *p, char *line, size_t n)
{
    while (n && line[n - 1] == '\r')
        n--;
    line[n] = 0;
    if (memchr(line, 0, n)) {
        rt_faults_add(&p->found.faults, p->found.line,
                      "holds a zero byte; JSONL is text");
        return;
    }
    if (strspn(line, " \t") == n)
        return;
    size_t column;
    const char *why = rt_json_line(&p->json, spec, line, n, &column);
    if (why) {
        not_json(p, line, why, column);
        return;
    }
    for (int k = 0; k < p->json.nunknown; k++) {
        rt_notes one = {.nunknown = 1};
        memcpy(one.unknown[0], p->json.unknown[k], RT_KEY);
        rt_notes_join(&p->found.notes, &one);
    }
    if (rt_row_check(spec, &p->json, &p->row, &p->found))
        return;
    rt_row_count(spec, &p->row, &p->found.counts);
    add_record(p);
}

static void
check_piece(const rt_data_spec *spec, piece *p)
{
    char *at = p->text, *stop = p->text + p->n;
    if (p->number == 0 && p->n >= 3 && !memcmp(at, "\xef\xbb\xbf", 3))
        at += 3;
    while (at < stop) {
        char *end = memchr(at, '\n', (size_t)(stop - at));
        end = end ? end : stop;
        p->found.line++;
        check_line(spec, p, at, (size_t)(end - at));
        at = end + 1;
    }
}

static void
free_piece(piece *p)
{
    free(p->text);
    free(p->record.s);
    free(p->size.s);
    rt_json_free(&p->json);
    rt_row_free(&p->row);
}

/* ---- pieces in turn ---- */

/* Up to PIECE more bytes behind p->text; false: the file ends, or it failed. */
static bool
read_more(jsonl *j, piece *p)
{
    if (p->n + PIECE + 1 > p->cap) {
        p->cap = p->n + PIECE + p->n / 2 + 1;
        p->text = rt_grow(p->text, p->cap);
    }
    ssize_t n;
    do
        n = read(j->fd, p->text + p->n, PIECE);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        j->code = rt_fail(RT_USER, "%s: %s", j->path, strerror(errno));
    j->end |= n <= 0;
    p->n += n > 0 ? (size_t)n : 0;
    j->done += n > 0 ? n : 0;
    return n > 0;
}

/* The next whole lines; false: there are none. */
static bool
take(jsonl *j, piece *p)
{
    if (j->end || j->code)
        return false;
    p->n = 0;
    p->number = j->taken;
    if (j->rest.n >= p->cap)
        p->text = rt_grow(p->text, p->cap = j->rest.n + PIECE + 1);
    if (j->rest.n)
        memcpy(p->text, j->rest.s, j->rest.n);
    p->n = j->rest.n;
    j->rest.n = 0;
    const char *cut = NULL;
    for (size_t seen = p->n; !cut && read_more(j, p); seen = p->n) {
        cut = memrchr(p->text + seen, '\n', p->n - seen);
        if (!cut && p->n > LONGEST)
            j->code = rt_fail(RT_USER, "%s: a line is longer than %s", j->path,
                              rt_bytes_text(LONGEST));
        if (j->code)
            return false;
    }
    if (cut) {
        size_t whole = (size_t)(cut + 1 - p->text);
        rt_put(&j->rest, p->text + whole, p->n - whole);
        p->n = whole;
    }
    j->taken += p->n > 0;
    return p->n > 0 && !j->code;
}

static int
put_records(jsonl *j, const piece *p)
{
    struct rt_store *store = j->l->d->store;
    const char *record = p->record.s;
    int code = RT_OK;
    XXH3_64bits_update(j->hash, p->record.s, p->record.n);
    for (size_t i = 0; i < p->size.n && !code; i += sizeof(uint32_t)) {
        uint32_t n;
        memcpy(&n, p->size.s + i, sizeof n);
        code = rt_store_add(store, record, n);
        record += n;
    }
    return code;
}

static void
put(jsonl *j, piece *p)
{
    rt_data_file *f = j->l->file;
    if (!j->code && !j->faults.n && !p->found.faults.n)
        j->code = put_records(j, p);
    rt_faults_join(&j->faults, &p->found.faults, j->lines);
    rt_notes_join(j->l->notes, &p->found.notes);
    f->n += p->found.counts.n;
    f->ntoken += p->found.counts.ntoken;
    f->nreal += p->found.counts.nreal;
    f->supervised += p->found.counts.supervised;
    j->lines += p->found.line;
    j->turn++;
    if (j->size)
        rt_progress_part(&j->bar, "checking", j->done, j->size);
    p->record.n = p->size.n = 0;
    p->found = (rt_found){0};
}

static void *
worker(void *ctx)
{
    jsonl *j = ctx;
    piece *p = rt_new(1, sizeof *p);
    pthread_mutex_lock(&j->lock);
    while (take(j, p)) {
        pthread_mutex_unlock(&j->lock);
        check_piece(j->spec, p);
        pthread_mutex_lock(&j->lock);
        while (j->turn != p->number)
            pthread_cond_wait(&j->turned, &j->lock);
        put(j, p);
        pthread_cond_broadcast(&j->turned);
    }
    pthread_mutex_unlock(&j->lock);
    free_piece(p);
    free(p);
    return NULL;
}

static void
read_all(jsonl *j)
{
    pthread_t thread[MOST_THREADS];
    int started = 0,
        want = rt_sweep_threads(j->spec, j->size ? j->size / PIECE + 1 : MOST_THREADS);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->turned, NULL);
    rt_progress_start(&j->bar, 0);
    while (started + 1 < want && pthread_create(&thread[started], NULL, worker, j) == 0)
        started++;
    worker(j);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    rt_progress_clear(&j->bar);
    pthread_cond_destroy(&j->turned);
    pthread_mutex_destroy(&j->lock);
}

static int
outcome(jsonl *j, const struct stat *was)
{
    struct stat now;
    if (j->code)
        return j->code;
    if (rt_faults_say(&j->faults, j->path, true))
        return RT_USER;
    if (!j->l->file->n)
        return rt_fail(RT_USER, "%s holds no rows", j->path);
    if (S_ISREG(was->st_mode) && (fstat(j->fd, &now) || rt_stat_differs(was, &now)))
        return rt_fail(RT_USER, "%s was changed while it was read", j->path);
    return RT_OK;
}

static int
open_jsonl(rt_loading *l)
{
    struct stat was;
    jsonl j = {.l = l, .spec = &l->d->spec, .path = l->file->path};
    j.fd = open(j.path, O_RDONLY | O_CLOEXEC);
    if (j.fd < 0 || fstat(j.fd, &was))
        return rt_fail(RT_USER, "%s: %s", j.path, strerror(errno));
    j.size = S_ISREG(was.st_mode) ? was.st_size : 0;
    j.hash = rt_hash_new();
    l->file->format = strdup("JSONL");
    l->file->source->first = (int64_t)(l->d->store->index.n / sizeof(uint64_t));
    read_all(&j);
    int code = outcome(&j, &was);
    l->file->hash = XXH3_64bits_digest(j.hash);
    XXH3_freeState(j.hash);
    free(j.rest.s);
    close(j.fd);
    return code;
}

static int
jsonl_row(const rt_data *d, const rt_data_file *f, int64_t i, rt_row *row)
{
    if (rt_store_read(d->store, f->source->first + i, row) < 0)
        return RT_USER;
    rt_row_unpack(row);
    return RT_OK;
}

const rt_reader rt_jsonl_reader = {open_jsonl, jsonl_row};

int
rt_data_check_line(const rt_data_spec *spec, const char *line, size_t n)
{
    piece *p = rt_new(1, sizeof *p);
    p->found.line = 1;
    p->text = rt_new(n + 1, 1);
    if (n)
        memcpy(p->text, line, n);
    check_line(spec, p, p->text, n);
    int code = p->found.faults.n ? RT_USER : RT_OK;
    free_piece(p);
    free(p);
    return code;
}
