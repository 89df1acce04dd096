/* reviews.c -- makes a small sentiment task: reviews of products or of films.
 *
 *     reviews DOMAIN ROWS SEED >train.jsonl      DOMAIN: product or film
 *     reviews DOMAIN ROWS SEED text              the sentences instead, label first
 *     reviews vocab                              one word a line; its line is its id
 *     reviews encode <sentences >rows.jsonl      sentences of known words, one a line
 *
 * A review praises or pans with one opinion word; "not", "never" and "hardly" turn it over;
 * in "X but Y" only Y counts. The two domains share no opinion word and no subject, so a
 * model that learned from products knows the grammar of opinion, but no word of film
 * reviews: it guesses at them until it is fine-tuned. Same arguments, same bytes.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 32, MAX_VOCAB = 128 };

typedef struct domain {
    const char *name, *good, *bad, *subject; /* words, separated by blanks */
} domain;

static const domain domains[] = {
    {"product", "good great lovely solid handy sturdy neat fine superb reliable",
     "bad awful poor flimsy useless broken cheap noisy faulty slow",
     "phone lamp chair kettle bag watch desk camera"},
    {"film", "moving witty gripping charming brilliant tender clever thrilling",
     "dull boring clumsy shallow tedious silly bland lifeless",
     "film plot cast ending script score acting scene"},
};
static const char shared_words[] =
    "[PAD] [CLS] very really quite rather so truly not never hardly i think that we "
    "found "
    ", and it was the a this to be . honestly overall today is but feels";

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t rng;

static uint64_t
next(void)
{
    uint64_t z = (rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool
chance(int percent)
{
    return next() % 100 < (uint64_t)percent;
}

static char vocab[MAX_VOCAB][16];
static int nvocab;

/* Adds the words of a blank-separated list. */
static void
add_words(const char *list)
{
    int n;
    while (sscanf(list, " %15s%n", vocab[nvocab], &n) == 1 && nvocab < MAX_VOCAB - 1) {
        list += n;
        nvocab++;
    }
}

static void
make_vocab(void)
{
    add_words(shared_words);
    for (size_t i = 0; i < sizeof(domains) / sizeof(domains[0]); i++) {
        add_words(domains[i].good);
        add_words(domains[i].bad);
        add_words(domains[i].subject);
    }
}

static int
word_id(const char *word)
{
    for (int i = 0; i < nvocab; i++)
        if (strcmp(vocab[i], word) == 0)
            return i;
    return -1;
}

typedef struct sentence {
    int id[MAX_WORDS];
    int n;
} sentence;

static void
say(sentence *s, const char *words)
{
    char word[16];
    int n;
    while (s->n < MAX_WORDS && sscanf(words, " %15s%n", word, &n) == 1) {
        s->id[s->n++] = word_id(word);
        words += n;
    }
}

/* One word of a blank-separated list. */
static void
say_one_of(sentence *s, const char *words)
{
    int n = 1;
    for (const char *p = words; *p; p++)
        n += *p == ' ';
    int pick = (int)(next() % (uint64_t)n);
    while (pick--)
        words = strchr(words, ' ') + 1;
    char word[16];
    sscanf(words, "%15s", word);
    say(s, word);
}

/* "the plot was not really dull"; returns whether it praises. */
static bool
clause(sentence *s, const domain *d)
{
    bool praise = chance(50), negated = chance(35);
    say_one_of(s, "the this");
    say_one_of(s, d->subject);
    say_one_of(s, "is was feels");
    if (negated)
        say_one_of(s, "not never hardly");
    if (chance(50))
        say_one_of(s, "very really quite rather so truly");
    say_one_of(s, praise != negated ? d->good : d->bad);
    return praise;
}

static bool
review(sentence *s, const domain *d)
{
    static const char *const opening[] = {"i think that", "honestly ,", "overall ,",
                                          "we found that"};
    s->n = 0;
    say(s, "[CLS]");
    if (chance(40))
        say(s, opening[next() % 4]);
    bool praise = clause(s, d);
    if (chance(40)) {
        say(s, "but");
        praise = clause(s, d);
    }
    say(s, ".");
    return praise;
}

static void
print_row(const sentence *s, int label)
{
    printf("{\"input_ids\": [");
    for (int i = 0; i < s->n; i++)
        printf("%s%d", i ? ", " : "", s->id[i]);
    printf(label < 0 ? "]}\n" : "], \"labels\": %d}\n", label);
}

static int
encode(void)
{
    char line[512];
    while (fgets(line, sizeof(line), stdin)) {
        sentence s = {.n = 0};
        say(&s, "[CLS]");
        say(&s, line);
        for (int i = 0; i < s.n; i++)
            if (s.id[i] < 0) {
                fprintf(stderr,
                        "reviews: a word of this line is not in the vocabulary: %s",
                        line);
                return 1;
            }
        print_row(&s, -1);
    }
    return 0;
}

int
main(int argc, char **argv)
{
    make_vocab();
    if (argc == 2 && strcmp(argv[1], "vocab") == 0) {
        for (int i = 0; i < nvocab; i++)
            puts(vocab[i]);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "encode") == 0)
        return encode();
    const domain *d = NULL;
    for (size_t i = 0; argc >= 4 && i < sizeof(domains) / sizeof(domains[0]); i++)
        if (strcmp(argv[1], domains[i].name) == 0)
            d = &domains[i];
    if (!d) {
        fprintf(stderr,
                "usage: reviews product|film ROWS SEED [text] | vocab | encode\n");
        return 1;
    }
    rng = strtoull(argv[3], NULL, 10);
    for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
        sentence s;
        bool praise = review(&s, d);
        if (argc == 4) {
            print_row(&s, praise);
            continue;
        }
        printf("%d", praise);
        for (int k = 1; k < s.n; k++)
            printf(" %s", vocab[s.id[k]]);
        putchar('\n');
    }
    return 0;
}
