/* fuzz.h -- what the fuzz targets share.
 *
 * A target is one libFuzzer program: fuzz_input() gets the bytes of one input and must come
 * back, whatever they are. exit() counts as a fault, so do all failed assertions, what the
 * sanitizers find, more than 10 s and more than 2 GB. What the code under test says goes to
 * /dev/null, or under FUZZ_SAY=1 to standard error. Readers that want a path get one in a
 * folder of memory.
 */
#ifndef EFFICC_FUZZ_H
#define EFFICC_FUZZ_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static void fuzz_input(const uint8_t *data, size_t n);
static FILE *fuzz_null;
static char fuzz_dir[64];

/* A path in the folder; 8 turns. */
static inline const char *
fuzz_path(const char *name)
{
    static char path[8][128];
    static int turn;
    char *p = path[turn++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", fuzz_dir, name);
    return p;
}

/* Puts the bytes into a file of the folder. */
static inline const char *
fuzz_file(const char *name, const void *data, size_t n)
{
    const char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd))
        abort();
    return path;
}

/* The same as a file of tensors. An input that begins with '{' is a header, a zero byte and
 * the tensors' data, and gets the length that the format wants in front; so a mutated
 * header still is one. */
static inline const char *
fuzz_tensors(const char *name, const uint8_t *data, size_t n)
{
    const uint8_t *zero = n && *data == '{' ? memchr(data, 0, n) : NULL;
    if (!zero)
        return fuzz_file(name, data, n);
    size_t header = (size_t)(zero - data);
    uint8_t *file = malloc(n + 7);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)header >> 8 * i);
    memcpy(file + 8, data, header);
    memcpy(file + 8 + header, zero + 1, n - header - 1);
    const char *path = fuzz_file(name, file, n + 7);
    free(file);
    return path;
}

static void
fuzz_clean(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", fuzz_dir);
    if (system(command))
        perror(fuzz_dir);
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_null = fopen(getenv("FUZZ_SAY") ? "/dev/stderr" : "/dev/null", "w");
    strcpy(fuzz_dir, access("/dev/shm", W_OK) ? "/tmp/efficc-fuzz-XXXXXX"
                                              : "/dev/shm/efficc-fuzz-XXXXXX");
    if (!fuzz_null || !mkdtemp(fuzz_dir) || atexit(fuzz_clean))
        abort();
    return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_input(data, n);
    return 0;
}

#endif
