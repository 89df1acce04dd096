/* process.h -- programs that efficc starts, and what is half-written when a signal ends it.
 *
 * Whoever writes a folder that is not whole yet names it; whoever starts a compiler or trainer
 * does it here. SIGINT and other signals that are meant to end a program then end efficc at once,
 * wherever it is, and by that signal, as a shell wants to see it; the programs end before it, and
 * the folder is removed.
 */
#ifndef EFFICC_PROCESS_H
#define EFFICC_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

/* The folder is removed if a signal or exit() ends efficc before the next call. NULL: none is. One at
 * a time; the name is not copied. */
void ef_unfinished(const char *dir);
/* Removes it, whatever comes in between. */
void ef_remove_unfinished(void);
/* Removes a folder with all that is in it; links are not followed. */
void ef_remove_tree(const char *dir);
/* Between true and false signals that end efficc wait. */
void ef_hold_signals(bool);

/* Starts a program, found along PATH, in a process group of its own: without input, both outputs
 * into the open file. 0, or errno. */
int ef_start(pid_t *, char *const argv[], int output);
int ef_wait(pid_t); /* its status, as waitpid() has it */

#endif
