/* parse_int.h -- the words of the text form, read one by one: lex.c for parse.c. */
#ifndef EFFICC_PARSE_INT_H
#define EFFICC_PARSE_INT_H

#include "ir_int.h"

/* A statement is a line. The first fault of a line is reported, then the rest of the line
 * is skipped: every function below does nothing once `bad` is set. */
typedef struct ir_lexer {
    ir_module *m;
    const char *line, *p; /* start of the line, and where reading is */
    int lineno, nfault;   /* faults reported */
    bool bad;             /* this line is given up */
} ir_lexer;

/* Reports a fault at `at` in the line, or at the reading position if NULL. */
void ir_lex_fail(ir_lexer *, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void ir_lex_fail_as(ir_lexer *, const char *at, ef_diag, const char *what,
                    const char *why);
/* "line:column" of at, or of the reading position. */
const char *ir_lex_place(const ir_lexer *, const char *at);
void ir_lex_blank(ir_lexer *); /* skips blanks and a comment */
bool ir_lex_next_line(
    ir_lexer *); /* to the next line with a statement; false: end of text */
bool ir_lex_at_end(const ir_lexer *); /* of the line */
void ir_lex_end(ir_lexer *);          /* the line must end here */

bool ir_lex_eat(ir_lexer *, const char *punctuation);
void ir_lex_want(ir_lexer *, const char *punctuation);
const char *ir_lex_word(ir_lexer *, const char *what); /* [A-Za-z0-9_]+; "" on error */
const char *ir_lex_name(ir_lexer *, char sigil, const char *what); /* sigil 0: none */
int64_t ir_lex_int(ir_lexer *, int64_t least);
double ir_lex_float(ir_lexer *);
const char *ir_lex_quoted(ir_lexer *, const char *what);
const char *ir_lex_loc(ir_lexer *); /* NULL: none */
ir_dtype ir_lex_dtype(ir_lexer *);
const ir_type *ir_lex_type(ir_lexer *); /* never NULL */
/* Index of a word in a table with holes. */
int ir_lex_choice(ir_lexer *, const char *what, int n, const char *const *table);

#endif
