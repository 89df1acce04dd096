/* cost_card.c -- how long a card takes for a kernel; see cost.h and cards.def. */
#include "cost.h"

#include <string.h>

#define GIGA 1e9
#define TERA 1e12

static const cg_card cards[] = {
#define CARD(name, text, memory, bandwidth, at_most, product, plain)  \
    {#name,          text,           memory * GIGA, bandwidth * GIGA, \
     at_most * GIGA, product * TERA, plain * TERA},
#define PRODUCT(card, size, rate)
#define ATTENTION(card, head, seq, fwd, bwd)
#include "cards.def"
#undef CARD
#undef PRODUCT
#undef ATTENTION
};

typedef struct rate { /* TFLOP/s at a size; head 0: of products */
    const char *card;
    int64_t head, size;
    double forward, backward;
} rate;

static const rate rates[] = {
#define CARD(name, text, memory, bandwidth, at_most, product, plain)
#define PRODUCT(card, size, tera)            {#card, 0, size, tera, tera},
#define ATTENTION(card, head, seq, fwd, bwd) {#card, head, seq, fwd, bwd},
#include "cards.def"
#undef CARD
#undef PRODUCT
#undef ATTENTION
};

const cg_card *
cg_card_named(const char *name, const char **names)
{
    static const char list[] =
#define CARD(name, text, memory, bandwidth, at_most, product, plain) ", " #name
#define PRODUCT(card, size, rate)
#define ATTENTION(card, head, seq, fwd, bwd)
#include "cards.def"
#undef CARD
#undef PRODUCT
#undef ATTENTION
        ;
    if (names)
        *names = list + 2;
    for (size_t i = 0; i < EF_COUNT(cards); i++)
        if (!strcmp(cards[i].name, name))
            return &cards[i];
    return NULL;
}

/* The head size of the table that is nearest to d; 0: d is. */
static int64_t
nearest_head(const cg_card *card, int64_t d)
{
    int64_t best = 0;
    for (size_t i = 0; d && i < EF_COUNT(rates); i++) {
        int64_t h = rates[i].head;
        if (!strcmp(rates[i].card, card->name) && h &&
            (!best || (h < d ? d - h : h - d) < (best < d ? d - best : best - d)))
            best = h;
    }
    return best;
}

/* Operations a second, interpolated between the rows of that head size. */
static double
rate_at(const cg_card *card, int64_t d, int64_t size, bool backward)
{
    const rate *below = NULL, *above = NULL;
    int64_t head = nearest_head(card, d);
    for (size_t i = 0; i < EF_COUNT(rates); i++) {
        const rate *r = &rates[i];
        if (strcmp(r->card, card->name) || r->head != head)
            continue;
        if (r->size <= size)
            below = r;
        else if (!above)
            above = r;
    }
    below = below ? below : above;
    above = above ? above : below;
    double a = backward ? below->backward : below->forward;
    double b = backward ? above->backward : above->forward;
    double part = above == below ? 0
                                 : (double)(size - below->size) /
                                       (double)(above->size - below->size);
    return (a + part * (b - a)) * TERA;
}

static double
rate_of(const cg_card *card, const cg_cost *c, bool hard)
{
    if (c->work == CG_PLAIN || !c->low)
        return card->plain;
    if (hard)
        return card->product_at_most;
    if (c->work == CG_PRODUCT)
        return rate_at(card, 0, c->size, false);
    return rate_at(card, c->size, c->seq, c->work == CG_ATTN_BACKWARD);
}

double
cg_seconds(const cg_card *card, const cg_cost *c, bool hard, bool *by_bytes)
{
    double moving = c->bytes / (hard ? card->bandwidth_at_most : card->bandwidth);
    double computing = c->flop / rate_of(card, c, hard);
    *by_bytes = moving > computing;
    return moving > computing ? moving : computing;
}
