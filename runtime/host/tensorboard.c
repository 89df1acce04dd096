/* tensorboard.c -- event files for TensorBoard, behind the log: a row of the log is an event
 * with a scalar for each of its numbers, under the tags that Hugging Face's trainer uses.
 *
 * An event file is a sequence of records: length (uint64), masked CRC32C of the length, the
 * bytes of an Event, masked CRC32C of them; little-endian. The messages, of which few fields
 * are needed, are encoded here (field numbers of tensorboard/compat/proto/event.proto,
 * summary.proto and tensor.proto). A run that goes on writes another file beside those that
 * are there; its START makes TensorBoard drop what they hold of later steps.
 */
#include "host_int.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct rt_board {
    rt_records file;
};

/* ---- protocol buffers ---- */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5 };
enum { EVENT_SESSION = 7, SESSION_STATUS = 1, SESSION_START = 1 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };
enum { VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1 };
enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8, DT_STRING = 7 };
enum { SHAPE_DIM = 2, DIM_SIZE = 1 };

static void
put_little(rt_text *t, uint64_t x, int bytes)
{
    for (; bytes > 0; bytes--, x >>= 8)
        rt_put(t, &(unsigned char){x & 0xff}, 1);
}

static void
put_varint(rt_text *t, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        put_little(t, (x & 0x7f) | 0x80, 1);
    put_little(t, x, 1);
}

static void
put_key(rt_text *t, int field, int wire)
{
    put_varint(t, (uint64_t)(field << 3 | wire));
}

static void
put_int(rt_text *t, int field, int64_t x)
{
    put_key(t, field, WIRE_VARINT);
    put_varint(t, (uint64_t)x);
}

static void
put_float(rt_text *t, int field, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_key(t, field, WIRE_32);
    put_little(t, bits, 4);
}

static void
put_double(rt_text *t, int field, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_key(t, field, WIRE_64);
    put_little(t, bits, 8);
}

static void
put_string(rt_text *t, int field, const char *s)
{
    put_key(t, field, WIRE_BYTES);
    put_varint(t, strlen(s));
    rt_put(t, s, strlen(s));
}

/* The message in *inner becomes a field of t. */
static void
put_message(rt_text *t, int field, rt_text *inner)
{
    put_key(t, field, WIRE_BYTES);
    put_varint(t, inner->n);
    rt_put(t, inner->s, inner->n);
    free(inner->s);
    *inner = (rt_text){0};
}

/* ---- records ---- */

/* CRC-32C (Castagnoli), reflected; then rotated and moved, as TFRecord files want it. */
static uint32_t
masked_crc(const char *s, size_t n)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned char)s[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Appends the record of an event, or nothing. */
static void
append(rt_board *b, rt_text *event)
{
    rt_text r = {0};
    put_little(&r, event->n, 8);
    put_little(&r, masked_crc(r.s, 8), 4);
    rt_put(&r, event->s, event->n);
    put_little(&r, masked_crc(event->s, event->n), 4);
    rt_records_add(&b->file, r.s, r.n);
    free(r.s);
    free(event->s);
}

static rt_text
event_at(int64_t step)
{
    struct timespec now;
    rt_text event = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&event, EVENT_TIME, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_int(&event, EVENT_STEP, step);
    return event;
}

/* ---- what is written ---- */

static void
put_scalar(rt_text *summary, const char *tag, double x)
{
    rt_text value = {0};
    put_string(&value, VALUE_TAG, tag);
    put_float(&value, VALUE_SIMPLE, (float)x);
    put_message(summary, SUMMARY_VALUE, &value);
}

void
rt_board_row(rt_board *b, int n, const rt_log_value *v)
{
    rt_text summary = {0};
    double step = -1;
    for (int i = 0; i < n; i++) {
        char tag[128];
        bool eval = !strncmp(v[i].key, "eval_", 5);
        snprintf(tag, sizeof tag, "%s/%s", eval ? "eval" : "train",
                 v[i].key + (eval ? 5 : 0));
        if (!strcmp(v[i].key, "step"))
            step = v[i].value;
        else if (!v[i].json && isfinite(v[i].value))
            put_scalar(&summary, tag, v[i].value);
    }
    if (step >= 0 && summary.n) {
        rt_text event = event_at((int64_t)step);
        put_message(&event, EVENT_SUMMARY, &summary);
        append(b, &event);
    }
    free(summary.s);
}

/* A table in Markdown, which TensorBoard's page of texts shows. */
static rt_text
options_table(const char *options)
{
    rt_text t = {0};
    cJSON *o = cJSON_Parse(options), *item;
    rt_putf(&t, "| option | value |\n| --- | --- |\n");
    cJSON_ArrayForEach(item, o)
    {
        char *value = cJSON_IsString(item) ? strdup(item->valuestring)
                                           : cJSON_PrintUnformatted(item);
        rt_putf(&t, "| %s | ", item->string);
        for (const char *c = value; c && *c; c++)
            rt_putf(&t, strchr("|\\`*_<", *c) ? "\\%c" : "%c", *c == '\n' ? ' ' : *c);
        rt_putf(&t, " |\n");
        free(value);
    }
    cJSON_Delete(o);
    return t;
}

static void
write_options(rt_board *b, int64_t done, const char *options)
{
    rt_text dim = {0}, shape = {0}, tensor = {0}, plugin = {0}, meta = {0};
    rt_text value = {0}, summary = {0}, event = event_at(done);
    rt_text table = options_table(options);
    put_int(&dim, DIM_SIZE, 1);
    put_message(&shape, SHAPE_DIM, &dim);
    put_int(&tensor, TENSOR_DTYPE, DT_STRING);
    put_message(&tensor, TENSOR_SHAPE, &shape);
    put_string(&tensor, TENSOR_STRING, table.s);
    put_string(&plugin, PLUGIN_NAME, "text");
    put_message(&meta, METADATA_PLUGIN, &plugin);
    put_string(&value, VALUE_TAG, "options/text_summary");
    put_message(&value, VALUE_TENSOR, &tensor);
    put_message(&value, VALUE_METADATA, &meta);
    put_message(&summary, SUMMARY_VALUE, &value);
    put_message(&event, EVENT_SUMMARY, &summary);
    append(b, &event);
    free(table.s);
}

static void
write_start(rt_board *b, int64_t done)
{
    rt_text event = event_at(0), session = {0};
    put_string(&event, EVENT_VERSION, "brain.Event:2");
    append(b, &event);
    event = event_at(done + 1);
    put_int(&session, SESSION_STATUS, SESSION_START);
    put_message(&event, EVENT_SESSION, &session);
    append(b, &event);
}

/* ---- files ---- */

/* Of the event files in dir, the time in the youngest's name; 0: none. drop: removes them. */
static long long
youngest(const char *dir, bool drop)
{
    static const char prefix[] = "events.out.tfevents.";
    DIR *d = opendir(dir);
    long long last = 0, at;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, prefix, sizeof prefix - 1) ||
            sscanf(e->d_name + sizeof prefix - 1, "%lld.", &at) != 1)
            continue;
        char *path = rt_path(dir, e->d_name);
        if (drop && unlink(path))
            rt_warn("%s: %s; TensorBoard will show it, too", path, strerror(errno));
        else if (!drop)
            last = at > last ? at : last;
        free(path);
    }
    if (d)
        closedir(d);
    return last;
}

/* TensorBoard reads the files of a folder in the order of their names, so the new one gets a
 * later time than those that are there. */
static char *
file_name(const char *dir, int64_t keep)
{
    char host[256] = "localhost";
    long long now = (long long)time(NULL), last = youngest(dir, keep < 0);
    rt_text t = {0};
    gethostname(host, sizeof host - 1);
    rt_putf(&t, "%s/events.out.tfevents.%010lld.%s.%lld.0", dir,
            last >= now ? last + 1 : now, host, (long long)getpid());
    return t.s;
}

int
rt_board_open(rt_log *l, const char *dir, int64_t keep, const char *options)
{
    rt_board *b = rt_new(1, sizeof *b);
    rt_records *f = &b->file;
    char *folder = rt_path(dir, "runs");
    f->fd = -1;
    if (!mkdir(folder, 0777) || errno == EEXIST) {
        f->path = file_name(folder, keep);
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    int code = RT_OK;
    if (f->fd < 0) {
        code = rt_fail(rt_errno_code(errno), "%s: %s", f->path ? f->path : folder,
                       strerror(errno));
        free(f->path);
        free(b);
    } else {
        write_start(b, keep);
        write_options(b, keep < 0 ? 0 : keep, options);
        l->board = b;
    }
    free(folder);
    return code;
}

void
rt_board_close(rt_board *b)
{
    if (!b)
        return;
    close(b->file.fd); /* all of it was written */
    free(b->file.path);
    free(b);
}
