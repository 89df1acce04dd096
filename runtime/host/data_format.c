/* data_format.c -- which files, with which weights, in which format.
 *
 * A format is known by its first bytes; names only decide where a format has none (nanoGPT's
 * numbers are any bytes, JSONL is any text). What is known not to be a format of ours is
 * refused by its name, and so is a name that promises what the bytes are not.
 */
#include "data_int.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- formats ---- */

static bool
ends(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);
    return n > k && !strcmp(path + n - k, end);
}

/* Is there NAME.idx for this NAME.bin? */
static bool
has_index(const char *path)
{
    char *index = strdup(path);
    memcpy(index + strlen(index) - 4, ".idx", 4);
    bool has = access(index, F_OK) == 0;
    free(index);
    return has;
}

/* JSON under another name. Two tokens alone may look like its first bytes. */
static bool
is_json(const char *head, size_t n)
{
    size_t plain = 0;
    while (plain < n && head[plain] >= ' ' && head[plain] <= '~')
        plain++;
    return n > 4 && plain == n && (*head == '{' || *head == '[');
}

/* What other tools write, by its first bytes. */
static int
foreign(const char *path, const char *head, size_t n, bool stream)
{
    static const struct {
        int n;
        const char *head, *what;
    } known[] = {
        {4, "PK\3\4",
         "a zip archive (of PyTorch or NumPy); save token ids with numpy.save"},
        {4, "PAR1", "Parquet; write JSONL with scripts/tokenize.py"},
        {6, "ARROW1", "Arrow; write JSONL with scripts/tokenize.py"},
        {4, "\xff\xff\xff\xff",
         "an Arrow stream; write JSONL with scripts/tokenize.py"},
        {4, "\x89HDF", "HDF5; save token ids with numpy.save"},
        {4, "GGUF", "a GGUF model, not data"},
        {4, "\x28\xb5\x2f\xfd", "compressed with zstd; uncompress it first"},
        {6,
         "\xfd"
         "7zXZ\0",
         "compressed with xz; uncompress it first"},
        {3, "\x1f\x8b\x08", "compressed with gzip; uncompress it first"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool sure = !stream || known[i].n > 3; /* two tokens may look like it */
        if (sure && n >= (size_t)known[i].n &&
            !memcmp(head, known[i].head, (size_t)known[i].n))
            return rt_fail(RT_USER, "%s is %s", path, known[i].what);
    }
    return RT_OK;
}

static const rt_reader *
by_content(const char *path, const char *head, size_t n)
{
    static const int32_t llmc[] = {20240520, 20240801, 20240522};
    int32_t magic = 0;
    if (n >= sizeof magic)
        memcpy(&magic, head, sizeof magic);
    if (n >= 6 && !memcmp(head, "\x93NUMPY", 6))
        return &rt_npy_reader;
    if (n >= 9 && !memcmp(head, "MMIDIDX\0\0", 9) && ends(path, ".idx"))
        return &rt_megatron_reader;
    for (int i = 0; i < 3; i++)
        if (magic == llmc[i])
            return &rt_llmc_reader;
    return NULL;
}

/* The first bytes of a file that can be read anywhere; of others none: a pipe is opened once
 * only. -1: said. */
static ssize_t
first_bytes(const char *path, char *head, size_t size)
{
    struct stat st;
    int fd = -1;
    ssize_t n = stat(path, &st);
    if (!n && S_ISDIR(st.st_mode)) {
        errno = EISDIR;
        n = -1;
    }
    if (!n && S_ISREG(st.st_mode)) {
        fd = open(path, O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? -1 : pread(fd, head, size, 0);
    }
    if (n < 0)
        rt_fail(RT_USER, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return n;
}

const rt_reader *
rt_format_of(const char *path)
{
    char head[16] = "";
    ssize_t n = first_bytes(path, head, sizeof head);
    if (n < 0)
        return NULL;
    if (ends(path, ".bin") && has_index(path))
        return &rt_megatron_reader;
    const rt_reader *r = by_content(path, head, (size_t)n);
    bool stream = ends(path, ".bin");
    if (r || foreign(path, head, (size_t)n, stream))
        return r;
    if (ends(path, ".npy") || ends(path, ".idx")) {
        rt_fail(RT_USER, "%s is not %s: it begins otherwise", path,
                ends(path, ".npy") ? "a NumPy file" : "an index of Megatron");
        return NULL;
    }
    if (stream && is_json(head, (size_t)n)) {
        rt_fail(RT_USER, "%s looks like JSON; call it .jsonl", path);
        return NULL;
    }
    return stream ? &rt_nanogpt_reader : &rt_jsonl_reader;
}

/* ---- weights ---- */

/* word is FILE, or FILE:WEIGHT if there is no file of that whole name. */
static int
split(rt_data_file *f, const char *word)
{
    f->path = strdup(word);
    char *colon = strrchr(f->path, ':'), *end;
    if (!colon || access(word, F_OK) == 0)
        return RT_OK;
    *colon = 0;
    if (access(f->path, F_OK)) {
        *colon = ':'; /* opening it says what is missing */
        return RT_OK;
    }
    f->weight = strtod(colon + 1, &end);
    if (end == colon + 1 || *end || !isfinite(f->weight) || f->weight <= 0)
        return rt_fail(RT_USER,
                       "%s: a weight is a positive number, not '%s'\nFILE:WEIGHT, such "
                       "as a.jsonl:0.7",
                       f->path, colon + 1);
    return RT_OK;
}

/* Are there weights, and may there be? */
static int
check_weights(rt_data *d)
{
    int n = 0;
    for (int k = 0; k < d->nfile; k++)
        n += d->file[k].weight > 0;
    if (n && d->spec.use != RT_TRAINING)
        return rt_fail(RT_USER,
                       "%s:%g: weights are for --train-data; all rows of other "
                       "data are taken",
                       d->file->path, d->file->weight);
    for (int k = 0; k < d->nfile && n; k++)
        if (d->file[k].weight <= 0)
            return rt_fail(RT_USER,
                           "%s has no weight, but other files have\ngive all files one "
                           "(%s:WEIGHT), or none",
                           d->file[k].path, d->file[k].path);
    d->weighted = n > 0;
    return RT_OK;
}

int
rt_files_of(rt_data *d, const rt_words *words)
{
    int code = RT_OK;
    d->nfile = words->n;
    d->file = rt_new((size_t)words->n, sizeof *d->file);
    for (int k = 0; k < words->n && !code; k++) {
        d->file[k].source = rt_new(1, sizeof *d->file[k].source);
        code = split(&d->file[k], words->at[k]);
    }
    return code ? code : check_weights(d);
}
