/* shape_test.c -- shape rules: a table of op, operand types, and result types or message.
 *
 * Each row is written out as a module and read; the parser asks the shape rule. A row is
 * "op: operand types -> result types {attributes}"; operand i is the argument %a<i>, "=i"
 * for an operand means that it is the same value as operand i.
 */
#include "test.h"

#include "ir/ir_int.h"
#include "said.h"

typedef struct row {
    const char *op, *in, *attrs, *out;
    const char *why; /* NULL: fine; else part of the message */
} row;

#define HEADS "heads=4, kv_heads=2, head_dim=8, scale=0.5"

static const row rows[] = {
    /* elementwise */
    {"add", "f32[2,3] f32[3]", "", "f32[2,3]", NULL},
    {"add", "f32[2,3] f32[2]", "", "f32[2,3]",
     "operand 1 is f32[2], expected a shape that broadcasts with f32[2,3]"},
    {"add", "f32[2] i64[2]", "", "f32[2]",
     "operand 1 is i64[2], expected dtype f32 as operand 0 has"},
    {"add", "bool[2] bool[2]", "", "bool[2]", "operand 0 is bool[2], expected numbers"},
    {"add", "f32[2]", "", "f32[2]", "1 operands, expected 2"},
    {"add", "f32[2] f32[2]", "axis=0", "f32[2]", "takes no attribute 'axis'"},
    {"add", "f32[2]/dp f32[2]", "", "f32[2]", "operand 0 is sharded: gather it first"},
    {"add", "f32[rows:4,2] f32[4,2]", "", "f32[rows:4,2]", "expected a shape"},
    {"add", "f32[1048576,1] f32[1,1048577]", "", "f32[1]", "expected a shape"},
    {"exp", "f32[2]", "", "f32[3]", "result 0 is f32[3], expected f32[2]"},
    {"exp", "f32[2]", "", "f32[2] f32[2]", "2 results, expected 1"},
    {"exp", "fut", "", "fut", "operand 0 is fut, expected a tensor: wait for it first"},
    {"eq", "i64[4] i64[]", "", "bool[4]", NULL},
    {"eq", "i64[4] i64[]", "", "i64[4]", "result 0 is i64[4], expected bool[4]"},
    {"and", "bool[4,1] bool[3]", "", "bool[4,3]", NULL},
    {"not", "bool[4]", "", "bool[4]", NULL},
    {"where", "bool[4,1] f32[] f32[3]", "", "f32[4,3]", NULL},
    {"where", "f32[4] f32[4] f32[4]", "", "f32[4]",
     "operand 0 is f32[4], expected bool"},
    {"where", "bool[4] f32[4] i64[4]", "", "f32[4]", "expected dtype f32 as operand 1"},
    {"where", "bool[3] f32[4] f32[4]", "", "f32[4]",
     "operand 0 is bool[3], expected a sh"},
    {"gelu_d", "f32[4] f32[4]", "", "f32[4]", NULL},
    {"cast", "f32[2,3]", "", "bf16[2,3]", NULL},
    {"cast", "f32[2,3]/dp", "", "bf16[2,3]/dp", NULL},
    {"cast", "f32[2,3]/dp", "", "bf16[2,3]", "expected bf16[2,3]/dp"},
    {"cast", "f32[2,3]", "", "bf16[3,2]", "result is bf16[3,2], expected bf16[2,3]"},
    {"cast", "f32[]", "", "fut", "result is fut, expected a whole tensor"},
    {"const", "", "value=1.5", "f32[2,2]", NULL},
    {"const", "", "", "f32[2,2]", "attribute 'value' is missing"},
    {"const", "", "value=1", "f32[2]/dp", "expected a whole tensor"},

    /* structure */
    {"reshape", "f32[2,6]", "", "f32[3,4]", NULL},
    {"reshape", "f32[]", "", "f32[1,1]", NULL},
    {"reshape", "f32[rows:2,6]", "", "f32[rows:2,2,3]", NULL},
    {"reshape", "f32[rows:2,6]", "", "f32[2,6]",
     "expected dtype and number of elements"},
    {"reshape", "f32[2,6]", "", "f32[3,5]",
     "expected dtype and number of elements of f32"},
    {"reshape", "f32[2,6]", "", "i64[3,4]",
     "expected dtype and number of elements of f32"},
    {"transpose", "f32[2,3,4]", "perm=[2,0,1]", "f32[4,2,3]", NULL},
    {"transpose", "f32[2,rows:3]", "perm=[1,0]", "f32[rows:3,2]", NULL},
    {"transpose", "f32[2,3]", "perm=[1]", "f32[3,2]", "perm has 1 entries"},
    {"transpose", "f32[2,3]", "perm=[1,1]", "f32[3,2]",
     "perm[1] is 1, expected each of"},
    {"transpose", "f32[2,3]", "perm=[0,-1]", "f32[3,2]", "perm[1] is -1"},
    {"transpose", "f32[2,3]", "", "f32[3,2]", "attribute 'perm' is missing"},
    {"expand", "f32[2,1]", "", "f32[3,2,4]", NULL},
    {"expand", "f32[2,3]", "", "f32[2,4]",
     "expected a shape that f32[2,3] broadcasts to"},
    {"expand", "f32[2,3]", "", "f32[3]",
     "expected a shape that f32[2,3] broadcasts to"},
    {"expand", "f32[2]", "", "i64[2]", "expected a shape that f32[2] broadcasts to"},
    {"concat", "f32[2,3] f32[2,1] f32[2,0]", "axis=1", "f32[2,4]", NULL},
    {"concat", "f32[2,3]", "axis=0", "f32[2,3]", NULL},
    {"concat", "f32[2,3] f32[3,3]", "axis=1", "f32[2,6]",
     "operand 1 is f32[3,3], expected"},
    {"concat", "f32[2,3] i64[2,3]", "axis=1", "f32[2,6]", "operand 1 is i64[2,3]"},
    {"concat", "f32[2,3] f32[2,3]", "axis=2", "f32[2,6]",
     "axis is 2, expected a dimension of f32[2,3]"},
    {"concat", "f32[rows:2] f32[2]", "axis=0", "f32[4]", "operand 0 is f32[rows:2]"},
    {"concat", "f32[1099511627776] =0", "axis=0", "f32[4]",
     "result 0 would have more than 2^40 elements"},
    {"concat", "", "axis=0", "f32[4]", "0 operands, expected at least 1"},
    {"slice", "f32[2,10]", "axis=1, start=2", "f32[2,8]", NULL},
    {"slice", "f32[2,10]", "axis=1, start=1, step=3", "f32[2,3]", NULL},
    {"slice", "f32[2,10]", "axis=1, start=9, step=-3", "f32[2,4]", NULL},
    {"slice", "f32[2,10]", "axis=1", "f32[2,0]", NULL},
    {"slice", "f32[2,10]", "axis=1, start=1, step=3", "f32[2,4]",
     "start 1, step 3 and 4 elements leave dimension 1 of f32[2,10]"},
    {"slice", "f32[2,10]", "axis=1, start=8, step=-3", "f32[2,4]", "leave dimension 1"},
    {"slice", "f32[2,10]", "axis=1, start=-1", "f32[2,1]", "leave dimension 1"},
    {"slice", "f32[2,10]", "axis=1, step=0", "f32[2,1]", "leave dimension 1"},
    {"slice", "f32[2,10]", "axis=1, start=1, step=9223372036854775807", "f32[2,2]",
     "leave dimension 1"},
    {"slice", "f32[2,10]", "axis=1, start=1, step=-9223372036854775808", "f32[2,2]",
     "leave dimension 1"},
    {"slice", "f32[2,10]", "axis=1", "f32[3,5]",
     "the part is f32[3,5], expected f32[2,10]"},
    {"unslice", "f32[2,3]", "axis=1, start=1, step=3", "f32[2,10]", NULL},
    {"unslice", "f32[2,3]", "axis=1, start=1, step=5", "f32[2,10]",
     "leave dimension 1"},
    {"unslice", "f32[2,3]", "axis=1", "f32[10]", "axis is 1, expected a dimension of"},
    {"gather", "f32[5,6] i64[2,3]", "axis=0", "f32[2,3,6]", NULL},
    {"gather", "i64[6] i64[]", "axis=0", "i64[]", NULL},
    {"gather", "f32[5,6] f32[2]", "axis=0", "f32[2,6]", "expected integer indices"},
    {"gather", "f32[5,6] i64[2]", "axis=-1", "f32[5,2]", "axis is -1"},
    {"gather", "f32[1,1,1,1,1] i64[1,1,1,1,1]", "axis=0", "f32[1]", "more than 8 dim"},
    {"gather_grad", "f32[2,3,6] i64[2,3]", "axis=0", "f32[5,6]", NULL},
    {"gather_grad", "f32[2,3,7] i64[2,3]", "axis=0", "f32[5,6]",
     "operand 0 is f32[2,3,7], expected f32[2,3,6]"},

    /* arithmetic */
    {"matmul", "f32[2,3] f32[3,4]", "", "f32[2,4]", NULL},
    {"matmul", "f32[7,1,2,3] f32[5,3,4]", "", "f32[7,5,2,4]", NULL},
    {"matmul", "f32[3,2] f32[4,3]", "ta=1, tb=1", "f32[2,4]", NULL},
    {"matmul", "f32[rows:6,3] f32[3,4]", "", "f32[rows:6,4]", NULL},
    {"matmul", "i64[2,3] i64[3,4]", "", "i64[2,4]", NULL},
    {"matmul", "f32[2,3] f32[4,5]", "", "f32[2,5]",
     "operand 1 is f32[4,5], expected 3 in dimension 0 to match f32[2,3]"},
    {"matmul", "f32[2,3] f32[3,4]", "tb=1", "f32[2,3]", "expected 3 in dimension 1"},
    {"matmul", "f32[3] f32[3,4]", "", "f32[4]",
     "operand 0 is f32[3], expected at least two dimensions of f32"},
    {"matmul", "f32[2,3] i64[3,4]", "", "f32[2,4]",
     "operand 1 is i64[3,4], expected at"},
    {"matmul", "f32[2,2,3] f32[3,3,4]", "", "f32[2,2,4]",
     "expected leading dimensions that broadcast with f32[2,2,3]"},
    {"reduce_sum", "f32[2,3,4]", "axes=[0,2]", "f32[3]", NULL},
    {"reduce_mean", "f32[2,3,4]", "axes=[2], keep=1", "f32[2,3,1]", NULL},
    {"reduce_max", "f32[2,3]", "axes=[0,1]", "f32[]", NULL},
    {"reduce_sum", "f32[2,3]", "axes=[1,0]", "f32[]",
     "axes[1] is 0, expected dimensions"},
    {"reduce_sum", "f32[2,3]", "axes=[2]", "f32[2]", "axes[0] is 2"},
    {"reduce_sum", "f32[2,3]", "axes=[]", "f32[2]", "axes is empty"},
    {"softmax", "f32[2,3]", "", "f32[2,3]", NULL},
    {"softmax_grad", "f32[2,3] f32[2,3]", "", "f32[2,3]", NULL},
    {"softmax_grad", "f32[2,3] f32[3]", "", "f32[2,3]",
     "operand 1 is f32[3], expected f32"},
    {"softmax", "f32[]", "", "f32[]",
     "operand 0 is f32[], expected floats, at least one dimension"},
    {"cumsum", "i64[2,3]", "axis=1", "i64[2,3]", NULL},
    {"cumsum", "i64[2,3]", "axis=2", "i64[2,3]", "axis is 2"},

    /* recognised */
    {"embed", "f32[50,8] i64[2,3]", "", "f32[2,3,8]", NULL},
    {"embed", "f32[50,8] i64[rows:6]", "", "f32[rows:6,8]", NULL},
    {"embed", "f32[50] i64[2]", "", "f32[2]",
     "operand 0 is f32[50], expected a matrix"},
    {"embed", "f32[50,8] f32[2]", "", "f32[2,8]", "expected integer ids"},
    {"embed", "f32[50,8] i64[1,1,1,1,1,1,1,1]", "", "f32[8]",
     "fewer than 8 dimensions"},
    {"embed_grad", "f32[2,3,8] i64[2,3]", "", "f32[50,8]", NULL},
    {"embed_grad", "bf16[2,3,8] i64[2,3]", "", "f32[50,8]", NULL},
    {"embed_grad", "f32[2,3,8] i64[2,3]", "", "f32[50,9]",
     "expected a table with rows of 8"},
    {"embed_grad", "f32[2,8] i64[2,3]", "", "f32[50,8]",
     "expected the dimensions of i64"},
    {"linear", "f32[2,5,3] f32[3,4]", "", "f32[2,5,4]", NULL},
    {"linear", "f32[2,5,3] f32[4,3] f32[4]", "tb=1", "f32[2,5,4]", NULL},
    {"linear", "f32[3] f32[3,4]", "", "f32[4]", NULL},
    {"linear", "f32[2,3] f32[4,3]", "", "f32[2,3]", "expected 3 in dimension 0"},
    {"linear", "f32[2,3] f32[3,4] f32[3]", "", "f32[2,4]",
     "operand 2 is f32[3], expected f32[4]"},
    {"linear", "f32[2,3] f32[1,3,4]", "", "f32[2,4]", "expected a f32 matrix"},
    {"linear", "i64[2,3] i64[3,4]", "", "i64[2,4]",
     "operand 0 is i64[2,3], expected floats"},
    {"linear_dw", "f32[2,5,3] f32[2,5,4]", "", "f32[3,4]", NULL},
    {"linear_dw", "f32[2,5,3] f32[2,5,4]", "tb=1", "f32[4,3]", NULL},
    {"linear_dw", "f32[2,5,3] f32[2,6,4]", "", "f32[3,4]",
     "but for the last dimension"},
    {"linear_dwb", "bf16[2,5,3] bf16[2,5,4]", "", "f32[3,4] f32[4]", NULL},
    {"linear_dwb", "f32[2,5,3] f32[2,5,4]", "tb=1", "f32[4,3] f32[4]", NULL},
    {"linear_dwb", "f32[2,5,3] f32[2,6,4]", "", "f32[3,4] f32[4]",
     "but for the last dimension"},
    {"linear_gelu", "bf16[2,5,3] bf16[3,4] f32[4]", "", "bf16[2,5,4] bf16[2,5,4]",
     NULL},
    {"linear_gelu", "f32[2,3] f32[4,3]", "tb=1", "f32[2,4]", NULL},
    {"linear_gelu", "f32[2,3] f32[3,4] f32[3]", "", "f32[2,4]",
     "operand 2 is f32[3], expected f32[4]"},
    {"linear_dgelu", "bf16[2,5,4] bf16[3,4] bf16[2,5,3]", "tb=1", "bf16[2,5,3]", NULL},
    {"linear_dgelu", "f32[2,4] f32[4,3] f32[2,4]", "", "f32[2,3]", "expected f32[2,3]"},
    {"linear_dgelu", "bf16[2,4] bf16[4,3] f32[2,3]", "", "bf16[2,3]",
     "expected bf16[2,3]"},
    {"layernorm", "f32[2,5,8] f32[8] f32[8]", "eps=1e-5",
     "f32[2,5,8] f32[2,5] f32[2,5]", NULL},
    {"layernorm", "f32[2,8] f32[8] f32[7]", "eps=1e-5", "f32[2,8] f32[2] f32[2]",
     "operand 2 is f32[7], expected f32[8]"},
    {"layernorm", "f32[2,8] f32[8] f32[8]", "", "f32[2,8] f32[2] f32[2]",
     "attribute 'eps' is missing"},
    {"layernorm_dx", "f32[2,8] f32[2,8] f32[8] f32[2] f32[2]", "", "f32[2,8]", NULL},
    {"layernorm_dx", "f32[2,8] f32[2,8] f32[8] f32[2] f32[8]", "", "f32[2,8]",
     "operand 4 is f32[8], expected f32[2]"},
    {"layernorm_dwb", "f32[2,8] f32[2,8] f32[2] f32[2]", "", "f32[8] f32[8]", NULL},
    {"rmsnorm", "f32[2,5,8] f32[8]", "eps=1e-5", "f32[2,5,8] f32[2,5]", NULL},
    {"rmsnorm", "f32[2,8] f32[7]", "eps=1e-5", "f32[2,8] f32[2]",
     "operand 1 is f32[7], expected f32[8]"},
    {"linear_add", "f32[2,5,4] bf16[2,5,3] bf16[3,4]", "", "f32[2,5,4]", NULL},
    {"linear_add", "f32[2,4] f32[2,3] f32[4,3] f32[4]", "tb=1", "f32[2,4]", NULL},
    {"linear_add", "f32[2,3] f32[2,3] f32[3,4]", "", "f32[2,3]", "expected f32[2,4]"},
    {"linear_add", "f32[2,4] f32[2,3] f32[4,4]", "", "f32[2,4]",
     "expected 3 in dimension 0"},
    {"layernorm_grad", "bf16[2,8] f32[2,8] f32[8] f32[2] f32[2] f32[2,8]",
     "wgrad=1, to=\"bf16\"", "f32[2,8] f32[8] f32[8] bf16[2,8]", NULL},
    {"layernorm_grad", "f32[2,8] f32[2,8] f32[8] f32[2]", "", "f32[2,8]", "expected 5"},
    {"rmsnorm_grad", "f32[2,8] f32[2,8] f32[8] f32[2]", "wgrad=1", "f32[2,8] f32[8]",
     NULL},
    {"rmsnorm_grad", "f32[2,8] f32[2,8] f32[8] f32[2] bf16[2,8]", "", "f32[2,8]",
     "expected f32[2,8]"},
    {"rotary2", "bf16[rows:10,32] bf16[rows:10,16] f32[rows:10,8] f32[rows:10,8]",
     "heads=4, kv_heads=2", "bf16[rows:10,32] bf16[rows:10,16]", NULL},
    {"rotary2", "f32[2,5,32] bf16[2,5,16] f32[1,5,8] f32[1,5,8]", "heads=4, kv_heads=2",
     "f32[2,5,32] bf16[2,5,16]", "f32 as operand 0 has"},
    {"rotary2", "f32[2,5,32] f32[2,5,16] f32[1,5,8] f32[1,5,8]", "heads=4, kv_heads=3",
     "f32[2,5,32] f32[2,5,16]", "3 heads"},
    {"rmsnorm_dx", "f32[2,8] f32[2,8] f32[8] f32[2]", "", "f32[2,8]", NULL},
    {"rmsnorm_dx", "f32[2,8] f32[2,8] f32[8] f32[8]", "", "f32[2,8]",
     "operand 3 is f32[8], expected f32[2]"},
    {"rmsnorm_dw", "f32[2,8] f32[2,8] f32[2]", "", "f32[8]", NULL},
    {"rmsnorm_dw", "f32[2,7] f32[2,8] f32[2]", "", "f32[8]",
     "operand 0 is f32[2,7], expected f32[2,8]"},
    {"layernorm_dwb", "f32[2,7] f32[2,8] f32[2] f32[2]", "", "f32[8] f32[8]",
     "operand 0 is f32[2,7], expected f32[2,8]"},
    {"attention", "f32[2,5,32] f32[2,5,16] f32[2,5,16]", HEADS,
     "f32[2,5,32] f32[2,4,5]", NULL},
    {"attention", "f32[2,5,64] =0 =0 i64[2,5]", HEADS ", causal=1, ko=32, vo=48",
     "f32[2,5,32] f32[2,4,5]", NULL},
    {"attention", "f32[2,5,64] =0 =0", HEADS ", ko=32, vo=49", "f32[2,5,32] f32[2,4,5]",
     "operand 2 is f32[2,5,64], expected 2 heads of 8 columns, 8 apart from 49 on"},
    {"attention", "f32[2,5,64] =0 =0 f32[2,5]", HEADS ", ko=32, vo=48",
     "f32[2,5,32] f32[2,4,5]", "operand 3 is f32[2,5], expected i64[2,5]"},
    {"attention", "f32[2,5,64] =0 =0", "heads=4, kv_heads=3, head_dim=8, scale=1",
     "f32[2,5,32] f32[2,4,5]", "expected kv_heads to divide heads"},
    {"attention", "f32[2,5,64] =0 =0",
     "heads=4611686018427387904, kv_heads=1, head_dim=4, scale=1",
     "f32[2,5,32] f32[2,4,5]", "head_dim is 4"},
    {"attention", "f32[10,32] f32[10,16] f32[10,16]", HEADS, "f32[10,32] f32[10,4]",
     "a mask, first rows of samples and positions follow v"},
    {"attention",
     "f32[rows:10,32] f32[rows:10,16] f32[rows:10,16] i64[rows:10] i64[3] i64[rows:10]",
     HEADS, "f32[rows:10,32] f32[rows:10,4]", NULL},
    {"attention",
     "f32[rows:10,32] f32[rows:10,16] f32[rows:10,16] i64[rows:10] i64[0] i64[rows:10]",
     HEADS, "f32[rows:10,32] f32[rows:10,4]",
     "the first row of each sample and the end"},
    {"attention", "f32[2,5,32] f32[2,5,16] f32[2,5,16] i64[2,5] i64[3] i64[2,5]", HEADS,
     "f32[2,5,32] f32[2,4,5]", "a mask is all that may follow v"},
    {"attention", "f32[2,5,32] f32[2,6,16] f32[2,6,16]", HEADS,
     "f32[2,5,32] f32[2,4,5]",
     "operand 1 is f32[2,6,16], expected f32[2,5,32] but for the last dimension"},
    {"attention", "f32[2,5,32] f32[2,5,16] f32[2,5,16]",
     "heads=4, kv_heads=2, head_dim=8", "f32[2,5,32] f32[2,4,5]",
     "attribute 'scale' is missing"},
    {"attention_grad", "f32[2,5,32] f32[2,5,64] =1 =1 f32[2,5,32] f32[2,4,5] i64[2,5]",
     HEADS ", ko=32, vo=48", "f32[2,5,64]", NULL},
    {"attention_grad",
     "f32[2,5,32] f32[2,5,32] f32[2,5,16] f32[2,5,16] f32[2,5,32] f32[2,4,5]", HEADS,
     "f32[2,5,32] f32[2,5,16] f32[2,5,16]", NULL},
    {"attention_grad",
     "f32[2,5,32] f32[2,5,32] f32[2,5,16] f32[2,5,16] f32[2,5,32] f32[2,4,5]", HEADS,
     "f32[2,5,32]", "1 results, expected dq, dk and dv"},
    {"attention_grad", "f32[2,5,32] f32[2,5,64] =1 =1 f32[2,5,32] f32[2,4,5]", HEADS,
     "f32[2,5,64] f32[2,5,64] f32[2,5,64]", NULL},
    {"attention_grad", "f32[2,5,32] f32[2,5,64] =1 =1 f32[2,5,32] f32[2,4,5]", HEADS,
     "f32[2,5,64]", "1 results, expected dq, dk and dv"},
    {"attention_grad", "f32[2,5,32] f32[2,5,64] =1 =1 f32[2,5,32] f32[2,4,5]",
     HEADS ", ko=32, vo=40", "f32[2,5,64]", "1 results, expected dq, dk and dv"},
    {"attention_grad", "f32[2,5,32] f32[2,5,64] =1 =1 f32[2,5,32] f32[2,4,5]",
     HEADS ", ko=32, vo=48", "f32[2,5,64] f32[2,5,64]",
     "2 results, expected dq, dk and dv, or the gradient of the value that they are"},
    {"attention_grad", "f32[2,5,32] f32[2,5,96] =1 =1 f32[2,5,32] f32[2,4,5]",
     "heads=4, kv_heads=4, head_dim=8, scale=1, ko=8, vo=16, qs=24, ks=24, vs=24",
     "f32[2,5,96]", NULL},
    {"attention_grad", "f32[2,5,32] f32[2,5,64] =1 =1 f32[2,5,32] f32[2,5,4]", HEADS,
     "f32[2,5,64]", "operand 5 is f32[2,5,4], expected f32[2,4,5]"},
    {"attention", "f32[2,5,96] =0 =0",
     "heads=4, kv_heads=4, head_dim=8, scale=1, ko=8, vo=16, qs=24, ks=24, vs=24, "
     "window=3, softcap=50",
     "f32[2,5,32] f32[2,4,5]", NULL},
    {"attention", "f32[2,5,96] =0 =0",
     "heads=4, kv_heads=4, head_dim=8, scale=1, ko=8, vo=17, qs=24, ks=24, vs=24",
     "f32[2,5,32] f32[2,4,5]", "expected 4 heads of 8 columns, 24 apart from 17 on"},
    {"attention", "f32[2,5,96] =0 =0", HEADS ", qs=7", "f32[2,5,32] f32[2,4,5]",
     "expected 4 heads of 8 columns, 7 apart from 0 on"},
    {"attention", "f32[2,5,96] =0 =0", HEADS ", window=-1", "f32[2,5,32] f32[2,4,5]",
     "window is -1"},
    {"attention", "f32[2,5,96] =0 =0", HEADS ", softcap=-1", "f32[2,5,32] f32[2,4,5]",
     "softcap -1"},
    {"attention", "f32[2,5,96] =0 =0 i64[2,5] i64[]",
     HEADS ", ko=32, vo=48, p=0.1, site=2", "f32[2,5,32] f32[2,4,5]", NULL},
    {"attention", "f32[2,5,96] =0 =0 i64[2,5] i64[2,5] i64[]",
     HEADS ", ko=32, vo=48, p=0.1", "f32[2,5,32] f32[2,4,5]", NULL},
    {"attention", "f32[2,5,96] =0 =0 i64[5] i64[]", HEADS ", p=0.1",
     "f32[2,5,32] f32[2,4,5]", "operand 3 is i64[5], expected i64[2,5]"},
    {"attention", "f32[2,5,96] =0 =0 i64[2,5] i64[]", HEADS ", p=1",
     "f32[2,5,32] f32[2,4,5]", "p is 1"},
    {"attention", "f32[2,5,96] =0 =0 i64[]", HEADS ", p=0.1", "f32[2,5,32] f32[2,4,5]",
     "it lacks keys and key"},
    {"attention_grad",
     "f32[2,5,32] f32[2,5,64] =1 =1 f32[2,5,32] f32[2,4,5] i64[2,5] i64[]",
     HEADS ", ko=32, vo=48, p=0.1", "f32[2,5,64]", NULL},
    {"dropout", "f32[2,5,32] i64[2,5] i64[]", "p=0.1, site=3", "f32[2,5,32]", NULL},
    {"dropout", "bf16[2,32] i64[2] i64[]", "p=0.1", "bf16[2,32]", NULL},
    {"dropout", "f32[2,5,32] i64[2] i64[]", "p=0.1", "f32[2,5,32]",
     "operand 1 is i64[2], expected i64[2,5]"},
    {"dropout", "f32[2,5,32] i64[2,5] i64[1]", "p=0.1", "f32[2,5,32]",
     "operand 2 is i64[1], expected i64[]"},
    {"dropout", "f32[2,5,32] i64[2,5] i64[]", "p=1.5", "f32[2,5,32]", "p is 1.5"},
    {"rotary", "f32[2,5,32] f32[1,5,8] f32[1,5,8]", "heads=4", "f32[2,5,32]", NULL},
    {"rotary", "f32[2,5,96] f32[2,5,4] f32[2,5,4]", "heads=4, start=8, stride=24",
     "f32[2,5,96]", NULL},
    {"rotary", "f32[2,5,32] f32[1,5,8] f32[1,5,8]", "heads=4, start=1", "f32[2,5,32]",
     "expected 4 heads of 8 columns, 8 apart from 1 on"},
    {"rotary", "f32[2,5,32] f32[1,5,7] f32[1,5,7]", "heads=4", "f32[2,5,32]", "r even"},
    {"rotary", "f32[2,5,32] f32[1,6,8] f32[1,6,8]", "heads=4", "f32[2,5,32]",
     "operand 1 is f32[1,6,8], expected a table"},
    {"rotary", "f32[2,5,32] f32[1,5,8] f32[2,5,8]", "heads=4", "f32[2,5,32]",
     "operand 2 is f32[2,5,8], expected f32[1,5,8]"},
    {"rotary", "f32[10,32] f32[1,5,8] f32[1,5,8]", "heads=4", "f32[10,32]",
     "expected a table [B or 1,S,r], or [rows,r]"},
    {"rotary", "bf16[rows:10,32] f32[rows:10,8] f32[rows:10,8]", "heads=4",
     "bf16[rows:10,32]", NULL},
    {"lora_add", "f32[2,5,96] f32[2,5,4] f32[32,4]",
     "by=2, start=8, block=8, stride=24", "f32[2,5,96]", NULL},
    {"lora_add", "f32[2,5,96] f32[2,5,4] f32[32,4]",
     "by=2, start=17, block=8, stride=24", "f32[2,5,96]",
     "expected 32 columns in blocks of 8, 24 apart from 17 on"},
    {"lora_dt", "f32[2,5,96] f32[32,4]", "by=2, block=5, stride=24", "f32[2,5,4]",
     "expected 32 columns in blocks of 5, 24 apart"},
    {"lora_db", "f32[2,5,96] f32[2,5,4]", "by=2, len=32, block=8, stride=7",
     "f32[32,4]", "expected 32 columns in blocks of 8, 7 apart"},
    {"lora_add", "f32[2,5,96] f32[2,5,4] f32[32,4]", "by=2, start=64", "f32[2,5,96]",
     NULL},
    {"lora_add", "f32[2,5,96] f32[2,5,4] f32[32,4]", "by=2, start=65", "f32[2,5,96]",
     "operand 0 is f32[2,5,96], expected 32 columns from 65 on"},
    {"lora_add", "f32[2,5,96] f32[2,5,4] f32[32,5]", "by=2", "f32[2,5,96]",
     "operand 1 is f32[2,5,4], expected f32[2,5,5]"},
    {"lora_dt", "f32[2,5,96] f32[32,4]", "by=2, start=64", "f32[2,5,4]", NULL},
    {"lora_dt", "f32[2,5,96] f32[32,4]", "by=2, start=-1", "f32[2,5,4]", "from -1 on"},
    {"lora_db", "f32[2,5,96] f32[2,5,4]", "by=2, start=64, len=32", "f32[32,4]", NULL},
    {"lora_db", "f32[2,5,96] f32[2,5,4]", "by=2, start=64, len=33", "f32[33,4]",
     "expected 33 columns from 64 on"},
    {"lora_db", "f32[2,5,96] f32[2,5,4]", "by=2", "f32[32,4]",
     "attribute 'len' is missing"},

    /* losses */
    {"ce", "f32[2,5,9] i64[2,5] f32[]", "", "f32[] i64[] f32[2,5,9] f32[2,5]", NULL},
    {"ce", "f32[2,9] i64[9] f32[]", "", "f32[] i64[] f32[2,9] f32[2]",
     "operand 1 is i64[9], expected i64[2]"},
    {"ce_grad", "f32[2,9] i64[2] f32[]", "", "f32[] f32[2,9]", NULL},
    {"ce_grad", "f32[2,9] i64[2] f32[1]", "", "f32[] f32[2,9]",
     "operand 2 is f32[1], expected f32[]"},
    {"mse", "f32[2,3] f32[2,3] f32[]", "", "f32[] f32[2]", NULL},
    {"mse", "bf16[2,3] f32[2,3] f32[]", "", "f32[] f32[2]", NULL},
    {"mse", "f32[2,3] f32[2] f32[]", "", "f32[] f32[2]",
     "operand 1 is f32[2], expected f32[2,3]"},
    {"mse", "f32[2,3] f32[2,3] f32[2]", "", "f32[] f32[2]",
     "operand 2 is f32[2], expected f32[]"},
    {"mse", "f32[] f32[] f32[]", "", "f32[] f32[]", "operand 0 is f32[]"},
    {"mse_grad", "f32[2,3] f32[2,3] f32[]", "", "f32[] f32[2,3]", NULL},
    {"mse_grad", "f32[2,3] i64[2,3] f32[]", "", "f32[] f32[2,3]",
     "operand 1 is i64[2,3], expected f32[2,3]"},
    {"head_ce", "f32[2,5,8] f32[50,8] i64[2,5] f32[] f32[50]", "tb=1, chunk=4",
     "f32[] i64[] i64[2,5] f32[2,5]", NULL},
    {"head_ce", "f32[6,8] f32[8,50] i64[6] f32[]", "", "f32[] i64[] i64[6] f32[6]",
     NULL},
    {"head_ce", "f32[6,8] f32[8,50] i64[6] f32[] f32[8]", "",
     "f32[] i64[] i64[6] f32[6]", "operand 4 is f32[8], expected f32[50]"},
    {"head_ce", "f32[6,8] f32[8,50] i64[6] f32[]", "chunk=-1",
     "f32[] i64[] i64[6] f32[6]", "chunk is -1"},
    {"head_ce_grad", "f32[6,8] f32[50,8] i64[6] f32[]", "tb=1", "f32[] f32[6,8]", NULL},
    {"head_ce_grad", "f32[6,8] f32[50,8] i64[6] f32[] f32[50]",
     "tb=1, wgrad=1, bgrad=1", "f32[] f32[6,8] f32[50,8] f32[50]", NULL},
    {"head_ce_grad", "f32[6,8] f32[50,8] i64[6] f32[] f32[50]", "tb=1, bgrad=1",
     "f32[] f32[6,8] f32[50]", NULL},
    {"head_ce_grad", "f32[6,8] f32[50,8] i64[6] f32[]", "tb=1, bgrad=1",
     "f32[] f32[6,8] f32[50]", "bgrad is set, expected a bias as operand 4"},
    {"head_ce_grad", "f32[6,8] f32[50,8] i64[6] f32[]", "tb=1, wgrad=1",
     "f32[] f32[6,8]", "2 results, expected 3: loss, dx, dw"},

    /* update */
    {"accum", "f32[4,3]/dp bf16[4,3]/dp", "", "", NULL},
    {"accum", "f32[4,3] f32[3,4]", "", "", "operand 1 is f32[3,4], expected f32[4,3]"},
    {"accum", "i64[4] i64[4]", "", "", "expected a buffer of floats"},
    {"norm2", "f32[4,3]/dp f32[7]/dp", "", "f32[]", NULL},
    {"norm2", "f32[4,3] i64[7]", "", "f32[]", "operand 1 is i64[7], expected floats"},
    {"clip_scale", "f32[]", "", "f32[]", NULL},
    {"clip_scale", "f32[] f32[4]", "", "f32[]", NULL},
    {"clip_scale", "f32[] f32[3]", "", "f32[]", "operand 1 is f32[3], expected f32[4]"},
    {"rescale", "f32[4] f32[]", "", "", NULL},
    {"rescale", "f32[4] f32[4]", "", "", "operand 1 is f32[4], expected f32[]"},
    {"linear", "bf16[2,4] bf16[4,3] f32[3]", "", "bf16[2,3]", NULL},
    {"linear", "bf16[2,4] bf16[4,3] f32[3]", "to=\"f32\"", "f32[2,3]", NULL},
    {"linear", "bf16[2,4] f32[4,3]", "", "bf16[2,3]",
     "operand 1 is f32[4,3], expected a bf16 matrix"},
    {"linear_dw", "bf16[2,4] bf16[2,3]", "", "f32[4,3]", NULL},
    {"layernorm", "f32[2,4] f32[4] f32[4]", "eps=1e-05, to=\"f16\"",
     "f16[2,4] f32[2] f32[2]", NULL},
    {"layernorm_dx", "bf16[2,4] f32[2,4] f32[4] f32[2] f32[2]", "", "f32[2,4]", NULL},
    {"embed", "bf16[9,4] i64[2]", "to=\"f32\"", "f32[2,4]", NULL},
    {"embed", "bf16[9,4] i64[2]", "to=\"i64\"", "f32[2,4]",
     "to is 'i64', expected a float type"},
    {"reduce_sum", "bf16[2,4]", "axes=[0], to=\"f32\"", "f32[4]", NULL},
    {"optim", "f32[4] f32[4] f32[4] f32[4] f32[] bf16[4]", "", "", NULL},
    {"optim", "f32[4] f32[4] f32[4] f32[4] f32[]", "", "", NULL},
    {"optim", "i64[4] i64[4] i64[4] i64[4] f32[]", "", "",
     "operand 0 is i64[4], expected f"},
    {"optim", "f32[4] f32[4] f32[5] f32[4] f32[]", "", "",
     "operand 2 is f32[5], expected"},
    {"optim", "f32[4] f32[4] f32[4] f32[4] f32[4]", "", "",
     "operand 4 is f32[4], expected f3"},
    {"ret", "f32[4] i64[]", "", "", NULL},
};

/* The module of a row, or NULL. */
static ir_module *
read_row(ef_ctx *ctx, const row *r)
{
    ef_buf args = {.arena = ctx->arena}, op = args, res = args, types = args;
    char *in = ef_strdup(ctx->arena, r->in), *out = ef_strdup(ctx->arena, r->out),
         *rest;
    int n = 0;
    ef_puts(&args, "");
    for (char *t = strtok_r(in, " ", &rest); t; t = strtok_r(NULL, " ", &rest), n++) {
        ef_putf(&op, "%s %%a%d", n ? "," : "", *t == '=' ? atoi(t + 1) : n);
        if (*t != '=')
            ef_putf(&args, "%s%%a%d : %s", args.n ? ", " : "", n, t);
    }
    n = 0;
    for (char *t = strtok_r(out, " ", &rest); t; t = strtok_r(NULL, " ", &rest), n++) {
        ef_putf(&res, "%s%%r%d", n ? ", " : "", n);
        ef_putf(&types, "%s %s", n ? "," : " :", t);
    }
    const char *text = ef_printf(ctx->arena,
                                 "efficc-ir 1\nunit 0 \"u\"\nfunc $step(%s) {\n"
                                 "@b: fwd unit=0\n  %s%s%s%s %s%s%s%s\n}\n",
                                 args.s, n ? res.s : "", n ? " = " : "", r->op,
                                 op.n ? op.s : "", *r->attrs ? "{" : "", r->attrs,
                                 *r->attrs ? "}" : "", n ? types.s : "");
    return ir_parse(ctx, "row.ir", text);
}

TEST(every_row_of_the_table)
{
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        said s;
        said_open(&s);
        ir_module *m = read_row(s.ctx, &rows[i]);
        const char *text = said_text(&s);
        bool ok = rows[i].why
                      ? !m && strstr(text, rows[i].why) && strstr(text, "[E0103]")
                      : m && !*text;
        if (!ok)
            printf("  row %zu, %s: expected \"%s\", said:\n%s", i, rows[i].op,
                   rows[i].why ? rows[i].why : "", text);
        CHECK(ok);
        ir_module_free(m);
        said_close(&s);
    }
}

/* An op without a row that it accepts and one that it refuses has an untested rule. The
 * elementwise ones share three rules. */
TEST(every_op_has_rows)
{
    for (int op = 0; op < IR_NOPS; op++) {
        bool accepts = false, refuses = false;
        for (size_t i = 0; i < EF_COUNT(rows); i++)
            if (!strcmp(rows[i].op, ir_ops[op].name))
                *(rows[i].why ? &refuses : &accepts) = true;
        bool shared = ir_ops[op].shape == sh_ew_S || ir_ops[op].shape == sh_ew_B ||
                      ir_ops[op].shape == sh_same || ir_ops[op].shape == sh_reduce ||
                      ir_ops[op].shape == sh_none;
        if (!shared && !(accepts && refuses))
            printf("  %s lacks a row\n", ir_ops[op].name);
        CHECK(shared || (accepts && refuses));
    }
}

TEST(tables_are_consistent)
{
    for (int op = 0; op < IR_NOPS; op++) {
        const ir_opinfo *o = &ir_ops[op];
        CHECK(o->nres >= 0 && o->nres <= o->nres_max && o->nres_max <= IR_MAX_NRES);
        CHECK(o->narg >= 0 && (o->narg_max < 0 || o->narg_max >= o->narg));
        CHECK(!(o->flags & IR_PURE) == !!(o->flags & IR_EFFECT));
        CHECK(!(o->flags & IR_TYPED) || (o->nres == 1 && o->nres_max == 1));
        CHECK(ir_op_by_name(o->name) == (ir_opcode)op);
    }
    CHECK(ir_op_by_name("no_such_op") == IR_NOPS);
}
