/* safetensors_fuzz.c -- a file of tensors: every one of them is found by its name and read,
 * as bytes and as floats.
 */
#include "fuzz.h"

#include "runtime/host/host_int.h"

static void
read_tensor(const rt_st *st, const rt_st_tensor *t)
{
    if (rt_st_find(st, t->name) > t)
        abort(); /* names come in the order of the file */
    char byte;
    if (t->bytes && rt_st_read(st, t, t->bytes - 1, &byte, 1))
        abort(); /* the file did not change */
    float *x = rt_new((size_t)t->count + 1, sizeof *x);
    rt_st_read_f32(st, t, x);
    free(x);
}

static void
fuzz_input(const uint8_t *data, size_t n)
{
    rt_out = rt_err = fuzz_null;
    rt_st st;
    if (rt_st_open(&st, fuzz_tensors("x.safetensors", data, n)) == RT_OK)
        for (int i = 0; i < st.n; i++)
            read_tensor(&st, &st.tensor[i]);
    rt_st_close(&st);
}
