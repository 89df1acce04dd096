/* data_int.h -- what the files data*.c share.
 *
 * A file of rows is a source with a reader, a row of functions for its format. Two kinds of
 * rows stand behind all formats: records in a spool (JSONL, checked and parsed once) and
 * pieces of arrays that lie in files as they are (NumPy, token streams, Megatron).
 */
#ifndef EFFICC_DATA_INT_H
#define EFFICC_DATA_INT_H

#include "host_int.h"

#include <pthread.h>
#include <sys/stat.h>

/* ---- data_spool.c: bytes in memory while they are few, else in a file without a name ---- */
typedef struct rt_spool {
    const char *dir; /* of the file; NULL: $TMPDIR or /var/tmp */
    int fd;          /* once there is a file */
    bool in_file;
    char *held; /* all bytes; in_file: those that wait to be written */
    size_t nheld, cap;
    uint64_t n;
} rt_spool;
/* Appends; RT_OK or says why not. */
int rt_spool_add(rt_spool *, const void *, size_t);
int rt_spool_done(rt_spool *); /* after the last rt_spool_add() */
int rt_spool_read(const rt_spool *, uint64_t at, void *, size_t);
void rt_spool_free(rt_spool *);

/* ---- data_sweep.c: work in parallel over a range, and the faults that it finds ---- */
enum { RT_SHOWN = 5, RT_FAULT = 600 };
typedef struct rt_faults { /* the first few in order of `at`, whoever found them */
    int64_t n;
    struct rt_fault {
        int64_t at;
        char text[RT_FAULT];
    } first[RT_SHOWN];
} rt_faults;
void rt_faults_add(rt_faults *, int64_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds what another found; its places are `base` further on here. */
void rt_faults_join(rt_faults *, const rt_faults *, int64_t base);
/* "path:at: text", or "path: text" where at is not a line. Returns RT_OK if there are none. */
int rt_faults_say(const rt_faults *, const char *path, bool lines);

typedef struct rt_sweep {
    int threads;
    int64_t n, grain; /* [0,n) in pieces of grain */
    void (*work)(struct rt_sweep *, int64_t from, int64_t to);
    const void *of; /* what work() looks at */
    /* under lock */
    pthread_mutex_t lock;
    int64_t taken, ended;
    rt_faults faults;
    int64_t found[2]; /* sums that work() adds to */
    int code;         /* of a failure that was said */
    rt_progress bar;  /* on a terminal, if it takes long */
} rt_sweep;
int rt_sweep_run(rt_sweep *); /* its code */
int rt_sweep_threads(const rt_data_spec *, int64_t pieces);

/* ---- data_json.c: one line of JSON ---- */
typedef enum rt_json_kind {
    RT_J_ABSENT,
    RT_J_NUMBER,
    RT_J_LIST,
    RT_J_OTHER
} rt_json_kind;
typedef struct rt_item { /* the value of a key */
    rt_json_kind kind;   /* RT_J_NUMBER: a number or null */
    int times;           /* that the key stands there */
    int64_t n, odd;      /* odd: first element that is neither number nor null; or n */
    double *x;           /* n numbers; NaN: null, or odd */
    int64_t cap;
} rt_item;
enum { RT_KEYS = 4, RT_KEY = 128 };
typedef struct rt_json {
    /* of the fields, then under their second names */
    rt_item item[2 * RT_NFIELDS];
    int nunknown;
    char unknown[RT_KEYS][RT_KEY]; /* other keys of the line, the first few */
} rt_json;
/* The object on a line of n bytes that ends in a zero byte (not counted). NULL, or what is
 * wrong with it, at byte *column from 1. Other keys may have any JSON value. */
const char *rt_json_line(rt_json *, const rt_data_spec *, const char *line, size_t n,
                         size_t *column);
void rt_json_free(rt_json *);

/* ---- data_row.c: rows, their checks, and how they stand in the spool ---- */
typedef struct rt_notes { /* decisions taken for the user */
    int64_t absent[RT_NFIELDS], ignored[RT_NFIELDS];
    int64_t foreign; /* rows for prediction whose labels are not of this model */
    int nunknown;
    char unknown[RT_KEYS][RT_KEY];
} rt_notes;
void rt_notes_join(rt_notes *, const rt_notes *);
typedef struct rt_counts {
    int64_t n, ntoken, nreal, supervised; /* rows, .. */
} rt_counts;

typedef struct rt_found { /* in lines so far */
    int64_t line;         /* the one that is looked at, from 1 */
    rt_faults faults;
    rt_notes notes;
    rt_counts counts;
} rt_found;
/* Checks the row in *j. RT_OK: *out is the row, its memory reused and a record of
 * rt_row_size() bytes. Else one more fault. */
int rt_row_check(const rt_data_spec *, const rt_json *j, rt_row *out, rt_found *);
/* Why the value x of a field can't be. where: "labels[3]". */
void rt_bad_value(const rt_data_spec *, rt_field, const char *where, double x,
                  char text[RT_FAULT]);
/* What numbers of a field are below: high, or 0 for all that an int32 holds. */
static inline int64_t
rt_below(int64_t high)
{
    return high ? high : (int64_t)INT32_MAX + 1;
}
int64_t rt_row_real(const rt_row *); /* tokens that the mask does not hide */
int64_t rt_row_supervised(const rt_data_spec *, const rt_row *);
void rt_row_count(const rt_data_spec *, const rt_row *, rt_counts *);
/* Room for so many bytes at row->memory. */
void *rt_row_room(rt_row *, size_t bytes);
/* A record: int32 n, nlabel, set of fields; then the fields. */
size_t rt_row_size(const rt_row *);
void rt_row_unpack(rt_row *); /* the record at row->memory */

/* ---- data_array.c: numbers in a file ---- */
typedef struct rt_array {
    char *path;        /* NULL: there is none */
    const char *field; /* what they are */
    int fd;
    struct stat was;
    char kind; /* 'u', 'i', 'f', as NumPy calls them */
    int size;  /* bytes of a number */
    int64_t at, n;
    int64_t high;   /* 0 <= number < high .. */
    bool ignore;    /* .. or RT_IGNORE */
    bool forgiving; /* others count as RT_IGNORE, too */
} rt_array;
bool rt_stat_differs(const struct stat *, const struct stat *); /* size, time */
/* Opens the file; the rest is the caller's to set. */
int rt_array_open(rt_array *, const char *path);
void rt_array_close(rt_array *);
int rt_array_bytes(const rt_array *, int64_t at, void *, size_t); /* raw bytes */
/* Numbers [from, from+n); also where the file changed since it was checked: says so. */
int rt_array_ints(const rt_array *, int64_t from, int64_t n, int32_t *out);
int rt_array_floats(const rt_array *, int64_t from, int64_t n, float *out);
/* Are all numbers in range? Adds those that are forgiven to *foreign. row: tokens of a row,
 * for the message; 0: unknown. */
int rt_array_check(const rt_array *, const rt_data_spec *, rt_field, int64_t row,
                   int64_t *foreign);
uint64_t rt_array_hash(const rt_array *, uint64_t seed); /* of size and samples */
const char *rt_array_type(const rt_array *);             /* "uint16"; static text */

/* ---- readers ---- */
typedef struct rt_loading rt_loading;
typedef struct rt_reader {
    int (*open)(rt_loading *); /* opens and checks all rows; RT_OK or says why not */
    int (*row)(const rt_data *, const rt_data_file *, int64_t i, rt_row *);
} rt_reader;
extern const rt_reader rt_jsonl_reader, rt_npy_reader, rt_nanogpt_reader,
    rt_llmc_reader, rt_megatron_reader;
struct rt_loading { /* a file that is being opened */
    rt_data *d;
    rt_data_file *file;
    rt_notes *notes;
};

struct rt_source {
    const rt_reader *reader;
    int64_t first; /* its first record in the spool */
    int64_t
        width; /* tokens of a row of arrays, the last may have fewer; 0: see records */
    rt_array array[RT_NFIELDS];
    bool floats;    /* labels are floats */
    int64_t nlabel; /* a row; 0: one a token */
};
struct rt_store {
    rt_spool index, record; /* byte at which record i begins; records of all files */
    rt_row row;             /* what was read last */
    int64_t row_at;         /* its number; -1: none */
    int64_t *cursor;        /* of rt_order_rows() */
};
/* Record i of the store to row->memory; its size. -1: said. */
int64_t rt_store_read(const struct rt_store *, int64_t i, rt_row *);
int rt_store_add(struct rt_store *, const void *, size_t);
/* data_arrays.c: checks and counts the rows of a source whose arrays are open. */
int rt_arrays_check(rt_loading *);
int rt_arrays_row(const rt_data *, const rt_data_file *, int64_t i, rt_row *);

/* Row i, which stays until another is looked at; NULL: said why. data.c */
const rt_row *rt_data_look(const rt_data *, int64_t i);
/* Positions of an epoch for each file, by their weights. data_order.c */
int rt_shares(rt_data *);

/* ---- data_format.c ---- */
/* Which format a file has by its first bytes and its name; NULL: said why. */
const rt_reader *rt_format_of(const char *path);
/* FILE or FILE:WEIGHT to d->file; RT_OK or says why not. */
int rt_files_of(rt_data *, const rt_words *);

#endif
