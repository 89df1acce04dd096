/* mutant.h -- included before each source that mutate.c has written. */
#ifndef EFFICC_MUTANT_H
#define EFFICC_MUTANT_H

#ifdef __cplusplus
extern "C"
#endif
    /* Is mutant i switched on? EFFICC_MUTANT has its number. With EFFICC_MUTANT_HITS, a file of zeros,
 * byte i of it becomes 1: this process, or one that it made, asked for i. */
    int
    mutant(int i);

#endif
