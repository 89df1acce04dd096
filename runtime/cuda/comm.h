/* comm.h -- opening collectives of a stream between ranks, one process each.
 *
 * Plain C: whoever starts ranks calls it. All ranks start the same collectives in the same
 * order.
 */
#ifndef EFFICC_CUDA_COMM_H
#define EFFICC_CUDA_COMM_H

#ifdef __cplusplus
extern "C" {
#endif
#include "../include/efficc_rt.h"

/* Of a communicator for gathers and one for reductions, which so go on side by side. */
enum { RTC_COMM_ID = 256 };

/* Made by one rank and given to all. */
void rtc_comm_id(char id[RTC_COMM_ID]);
/* From here on rt_all_gather() and rt_reduce_scatter() on the stream are between `ranks`; waits
 * for them. One rank needs none of it. */
void rtc_comm_open(rt_stream *, int rank, int ranks, const char id[RTC_COMM_ID]);
/* Waits; nothing if there is none. Futures of the stream are used no more. */
void rtc_comm_close(rt_stream *);

#ifdef __cplusplus
}
#endif
#endif
