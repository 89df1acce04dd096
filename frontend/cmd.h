/* cmd.h -- the commands of efficc beside compiling: `efficc WORD ...`.
 *
 * A command is a row of commands.def with its options, and a function cmd_WORD() in a file of
 * its own, frontend/cmd_WORD.c, which belongs to the executable and may use every layer.
 */
#ifndef EFFICC_CMD_H
#define EFFICC_CMD_H

#include "frontend.h"

typedef struct cmd_args {
    const char *word;
    int n; /* operands, as many as the row allows */
    const char **at;
    const struct fe_option *option; /* private to cmd.c, with what follows */
    int noption;
    const void *values;
    int argc; /* of a command with the compiler's options: the line without its own */
    char **argv;
} cmd_args;

/* Values by the option's name, which must be in the table; absent: false, 0 or NULL. */
bool cmd_flag(const cmd_args *, const char *name);
int64_t cmd_int(const cmd_args *, const char *name);
double cmd_num(const cmd_args *, const char *name);
const char *cmd_str(const cmd_args *, const char *name); /* STR and LIST */

/* Is it the command line of a command? The word of one, and no file has that name. */
bool cmd_is(int argc, char **argv);
/* Returns -1 to go on, or the exit code, as fe_options(). Memory is the ctx's. */
int cmd_parse(ef_ctx *, int argc, char **argv, cmd_args *);

/* Of a command whose other options are those of the compiler: fills cfg. Returns -1 to go on,
 * or the exit code. */
int cmd_compiler_options(ef_ctx *, const cmd_args *, ef_config *cfg);

/* The help of a command: usage, what it does, its options. */
void cmd_help(FILE *, const char *word);

/* cmd_WORD(): exit code. */
#define COMMAND(word, operands, least, most, help) \
    int cmd_##word(ef_ctx *, const cmd_args *);
#define OPTION(word, name, kind, arg, help)
#include "commands.def"
#undef COMMAND
#undef OPTION

#endif
