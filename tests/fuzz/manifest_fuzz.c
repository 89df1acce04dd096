/* manifest_fuzz.c -- the manifest of a checkpoint: one that is taken is written and read
 * again as the same text. Its last line, a hash of the rest, is not part of the input: it is
 * put behind it, so that changed manifests are taken, too.
 */
#include "fuzz.h"

#include "runtime/host/host_int.h"

#include <inttypes.h>
#include <xxhash.h>

static rt_manifest *
parse(const char *text, size_t n)
{
    char why[RT_WHY];
    rt_manifest *m = rt_manifest_parse(text, n, why);
    if (!m && !*why)
        abort();
    fprintf(fuzz_null, "%s\n", why);
    return m;
}

static void
fuzz_input(const uint8_t *data, size_t n)
{
    rt_out = rt_err = fuzz_null;
    char *text = malloc(n + 64);
    memcpy(text, data, n);
    n += (size_t)sprintf(text + n, "\"xxh3\": \"%016" PRIx64 "\"}\n",
                         (uint64_t)XXH3_64bits(data, n));
    rt_manifest *m = parse(text, n), *again;
    if (m) {
        char *once = rt_manifest_text(m), *twice;
        if (!(again = parse(once, strlen(once))))
            abort();
        twice = rt_manifest_text(again);
        if (strcmp(once, twice))
            abort();
        rt_manifest_free(again);
        free(once);
        free(twice);
    }
    rt_manifest_free(m);
    free(text);
}
