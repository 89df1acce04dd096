/* onnx_ops_einsum.c -- sums of products in Einstein's notation.
 *
 * "bqhd,bkhd->bhqk": an index in both operands and in the result is a batch dimension of a
 * product of matrices, one in both but not in the result is summed over, one in a single
 * operand is a row or a column. So two operands are permuted and merged to
 * [batch.., rows, sum] and [batch.., sum, columns]; more of them from the left, two by two.
 */
#include "ops_int.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LABELS = 128, ELLIPSIS = 1 }; /* dims of "..." are labels from ELLIPSIS on */

typedef struct term { /* an operand with a label for each of its dimensions */
    fe_val *v;
    char label[IR_MAX_RANK + 1];
} term;

typedef struct sum {
    fe_call *c;
    char out[LABELS]; /* labels of the result */
    int64_t size[LABELS];
    int ellipsis; /* dimensions that "..." stands for */
} sum;

static const char *
at_of(const char *label, char l)
{
    return l ? strchr(label, l) : NULL;
}

/* The labels of one operand, up to a comma or the end; dimensions of "..." have the last
 * numbers first, so that operands with fewer of them fit. false: said why. */
static bool
read_term(sum *s, const char **text, int rank, char *label)
{
    int n = 0, letters = 0;
    for (const char *t = *text; *t && *t != ','; t++)
        letters += isalpha((unsigned char)*t) != 0;
    for (; **text && **text != ','; ++*text) {
        char l = **text;
        if (l == '.') {
            int k = rank - letters;
            if (strncmp(*text, "...", 3) || k < 0)
                return fe_fail(s->c, "equation does not fit %d dimensions", rank);
            s->ellipsis = k > s->ellipsis ? k : s->ellipsis;
            for (int i = k - 1; i >= 0 && n < IR_MAX_RANK; i--)
                label[n++] = (char)(ELLIPSIS + i);
            *text += 2;
        } else if (n < IR_MAX_RANK && isalpha((unsigned char)l) && !at_of(label, l)) {
            label[n++] = l;
        } else {
            return fe_fail(s->c, "equation: '%c' is not supported there", l);
        }
        label[n] = '\0';
    }
    return n == rank || fe_fail(s->c, "equation does not fit %d dimensions", rank);
}

/* After "->", or without it the labels that stand once, in the order of the alphabet. */
static bool
read_result(sum *s, const char *equation, const char *arrow, ef_arena *a)
{
    char *p = s->out;
    const char *t = arrow ? arrow + 2 : "...";
    if (!arrow) {
        ef_buf b = {.arena = a};
        if (strstr(equation, "..."))
            ef_puts(&b, t);
        for (char l = 'A'; l <= 'z'; l++) {
            const char *at = isalpha((unsigned char)l) ? strchr(equation, l) : NULL;
            if (at && !strchr(at + 1, l))
                ef_putf(&b, "%c", l);
        }
        t = b.n ? b.s : "";
    }
    for (; *t; t++) {
        if (p - s->out >= IR_MAX_RANK)
            return fe_fail(s->c, "equation: more than %d dimensions", IR_MAX_RANK);
        if (isalpha((unsigned char)*t) && s->size[(int)*t] && !at_of(s->out, *t))
            *p++ = *t;
        else if (!strncmp(t, "...", 3)) {
            for (int i = s->ellipsis - 1; i >= 0 && p - s->out < IR_MAX_RANK; i--)
                *p++ = (char)(ELLIPSIS + i);
            t += 2;
        } else
            return fe_fail(s->c, "equation: result '%c' is not supported", *t);
    }
    return true;
}

/* Sums over what no other operand and no result has. */
static void
drop_lonely(sum *s, term *t, const char *elsewhere)
{
    int64_t axes[IR_MAX_RANK];
    int n = 0, k = 0;
    for (int i = 0; t->label[i]; i++)
        if (!at_of(s->out, t->label[i]) && !at_of(elsewhere, t->label[i]))
            axes[n++] = i;
        else
            t->label[k++] = t->label[i];
    t->label[k] = '\0';
    ir_attr attr = ir_attr_l(IR_ATTR_axes, n, axes);
    if (n)
        t->v = fe_emit(s->c, IR_OP_reduce_sum, 1, &t->v, 1, &attr, NULL);
}

/* Permutes t to the labels `order`, those that it lacks with size 1. */
static fe_val *
arranged(sum *s, const term *t, const char *order)
{
    int64_t perm[IR_MAX_RANK], dim[2 * IR_MAX_RANK];
    int n = 0, k = 0;
    for (; order[n]; n++) {
        const char *at = at_of(t->label, order[n]);
        dim[n] = at ? t->v->type->dim[at - t->label] : 1;
        if (at)
            perm[k++] = at - t->label;
    }
    return fe_reshape(s->c, fe_permute(s->c, t->v, perm), n, dim);
}

static int64_t
size_of(const term *t, const char *labels)
{
    int64_t n = 1;
    for (; *labels; labels++)
        n *= t->v->type->dim[at_of(t->label, *labels) - t->label];
    return n;
}

/* Labels of the four kinds. */
typedef struct kinds {
    char batch[2 * IR_MAX_RANK + 1], sum[2 * IR_MAX_RANK + 1];
    char row[2 * IR_MAX_RANK + 1], col[2 * IR_MAX_RANK + 1];
} kinds;

static void
add_label(char *to, char l)
{
    size_t n = strlen(to);
    to[n] = l;
    to[n + 1] = '\0';
}

/* A dimension of size 1 in one operand only is stretched: it counts as a batch dimension. */
static kinds
kinds_of(const sum *s, const term *a, const term *b, const char *later)
{
    kinds k = {"", "", "", ""};
    for (const char *l = a->label; *l; l++) {
        bool kept = at_of(s->out, *l) || at_of(later, *l);
        add_label(!at_of(b->label, *l) ? k.row : kept ? k.batch : k.sum, *l);
    }
    for (const char *l = b->label; *l; l++)
        if (!at_of(a->label, *l))
            add_label(k.col, *l);
    return k;
}

/* [batch.., x, y], x and y being the products of the sizes of those labels. */
static fe_val *
as_matrix(sum *s, const term *t, const char *batch, const char *x, const char *y)
{
    char order[6 * IR_MAX_RANK + 1];
    int64_t dim[4 * IR_MAX_RANK];
    int n = 0;
    snprintf(order, sizeof order, "%s%s%s", batch, x, y);
    for (; batch[n]; n++)
        dim[n] = size_of(t, (char[]){batch[n], '\0'});
    dim[n++] = size_of(t, x);
    dim[n++] = size_of(t, y);
    if (n > IR_MAX_RANK) {
        fe_fail(s->c, "equation: more than %d dimensions", IR_MAX_RANK);
        return NULL;
    }
    return fe_reshape(s->c, arranged(s, t, order), n, dim);
}

/* The product of a and b, into a. false: said why. */
static bool
multiply(sum *s, term *a, const term *b, const char *later)
{
    kinds k = kinds_of(s, a, b, later);
    int64_t dim[4 * IR_MAX_RANK];
    int n = 0;
    fe_val *m[] = {as_matrix(s, a, k.batch, k.row, k.sum),
                   as_matrix(s, b, k.batch, k.sum, k.col)};
    for (const char *l = k.batch; *l; l++) { /* the larger one: the other may be 1 */
        int64_t x = size_of(a, (char[]){*l, '\0'}), y = size_of(b, (char[]){*l, '\0'});
        dim[n++] = x == 1 ? y : x;
    }
    for (const char *l = k.row; *l; l++)
        dim[n++] = size_of(a, (char[]){*l, '\0'});
    for (const char *l = k.col; *l; l++)
        dim[n++] = size_of(b, (char[]){*l, '\0'});
    fe_val *y = fe_emit(s->c, IR_OP_matmul, 2, m, 0, NULL, NULL);
    if (n > IR_MAX_RANK)
        return fe_fail(s->c, "equation: more than %d dimensions", IR_MAX_RANK);
    a->v = fe_reshape(s->c, y, n, dim);
    a->label[0] = '\0';
    const char *const kept[] = {k.batch, k.row, k.col};
    for (size_t i = 0; i < EF_COUNT(kept); i++)
        for (const char *l = kept[i]; *l; l++)
            add_label(a->label, *l);
    return a->v != NULL;
}

/* Operands with their labels, and the sizes of these. */
static bool
read_operands(sum *s, const char *text, term *t)
{
    for (int i = 0; i < s->c->n->nin; i++) {
        if (!(t[i].v = fe_in(s->c, i)))
            return false;
        ir_dtype d = t[i].v->type->dtype;
        if (!ir_dtypes[d].is_float)
            t[i].v = fe_convert(s->c, t[i].v, IR_F32);
        if (!read_term(s, &text, t[i].v->type->rank, t[i].label))
            return false;
        for (int k = 0; t[i].label[k]; k++) {
            int64_t n = t[i].v->type->dim[k], *size = &s->size[(int)t[i].label[k]];
            if (*size > 1 && n > 1 && *size != n)
                return fe_fail(s->c, "equation: an index has sizes %lld and %lld",
                               (long long)*size, (long long)n);
            *size = n > *size ? n : *size;
        }
        text += *text == ',';
    }
    return !*text || fe_fail(s->c, "equation has more operands than the node");
}

bool
op_einsum(fe_call *c)
{
    sum s = {.c = c};
    ef_buf b = {.arena = c->im->arena}, later = {.arena = c->im->arena};
    for (const char *e = fe_attr_s(c, "equation", ""); *e; e++)
        if (*e != ' ')
            ef_putf(&b, "%c", *e);
    const char *equation = b.n ? b.s : "", *arrow = strstr(equation, "->");
    const char *left =
        arrow ? ef_strndup(c->im->arena, equation, (size_t)(arrow - equation))
              : equation;
    term *t = EF_NEWN(c->im->arena, term, c->n->nin + 1);
    if (!c->n->nin || !read_operands(&s, left, t) ||
        !read_result(&s, left, arrow, c->im->arena))
        return c->n->nin ? false : fe_fail(c, "no operands");
    for (int i = 0; i < c->n->nin; i++) {
        ef_buf others = {.arena = c->im->arena};
        for (int k = 0; k < c->n->nin; k++)
            ef_puts(&others, k == i ? "" : t[k].label);
        drop_lonely(&s, &t[i], others.n ? others.s : "");
        if (!t[i].v)
            return false;
    }
    for (int i = 1; i < c->n->nin; i++) {
        later.n = 0;
        ef_puts(&later, "");
        for (int k = i + 1; k < c->n->nin; k++)
            ef_puts(&later, t[k].label);
        if (!multiply(&s, &t[0], &t[i], later.n ? later.s : ""))
            return false;
    }
    return fe_result(c, arranged(&s, &t[0], s.out));
}
