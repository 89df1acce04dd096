/* progress.c -- what a person sees while the trainer runs: on a terminal one line that
 * changes, in a pipe or file a line for each row of the log.
 *
 * The live line always fits: fields are left out, the least important first, until a bar of
 * at least 4 columns has room; then the bar takes what is left. Fields keep their widths, so
 * nothing jumps. Room is left behind the line for the "^C" that a terminal shows, lest that
 * begins another line, which nobody clears. Whatever else is said clears the line first.
 */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NFIELDS = 7, MIN_BAR = 4, MAX_PART_BAR = 40, SHORT = 32, TEXT = 48 };
enum { SPARE = 3 }; /* columns behind the line */

static rt_progress *on_screen; /* whose line stands in the terminal; NULL: none */
static bool terminal;          /* there may have been one */

/* "59:59", from an hour on "1h05"; at most 5 columns up to 999 hours. */
static const char *
duration(double seconds)
{
    static char text[SHORT];
    long s = seconds < 0 ? 0 : seconds > 3.6e8 ? 360000000 : (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, sizeof text, "%ldh%02ld", s / 3600, s / 60 % 60);
    else
        snprintf(text, sizeof text, "%ld:%02ld", s / 60, s % 60);
    return text;
}

/* n with at most 5 columns: "12.3k". */
static const char *
short_count(double n)
{
    static char text[2][SHORT];
    static int turn;
    char *s = text[turn++ % 2];
    const char *unit = " kMGT";
    for (; n >= 999.5 && unit[1]; unit++)
        n /= 1000;
    if (*unit == ' ')
        snprintf(s, SHORT, "%.0f", n);
    else
        snprintf(s, SHORT, n < 99.95 ? "%.1f%c" : "%.0f%c", n, *unit);
    return s;
}

/* "7.3e-4": an exponent without zeros. */
static void
put_exponent(char *out, double x, int decimals)
{
    char text[SHORT];
    snprintf(text, sizeof text, "%.*e", decimals, x);
    char *e = strchr(text, 'e');
    int exponent = e ? atoi(e + 1) : 0;
    snprintf(out, SHORT, "%.*se%d", (int)(e ? e - text : 0), text, exponent);
}

/* x in `width` columns, at least 5, so that the line does not jump. */
static const char *
steady(double x, int width)
{
    static char text[4][SHORT];
    static int turn;
    char *s = text[turn++ % 4];
    int decimals = width - 2;
    if (!isfinite(x)) {
        snprintf(s, SHORT, "-");
    } else if (x != 0 && x < 0.01) {
        put_exponent(s, x, width - 5);
    } else {
        do
            snprintf(s, SHORT, "%.*f", decimals, x);
        while (decimals-- > 0 && (int)strlen(s) > width);
        if ((int)strlen(s) > width)
            put_exponent(s, x, 0);
    }
    return s;
}

static double
seconds_left(const rt_progress *p, const rt_state *s)
{
    double done = (double)(s->step - p->first);
    return done > 0 ? (rt_now() - p->start) / done * (double)(s->total - s->step) : 0;
}

static bool
unicode_terminal(void)
{
    const char *name[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *v = getenv(name[i]);
        if (v && *v)
            return strstr(v, "UTF-8") || strstr(v, "utf8") || strstr(v, "UTF8");
    }
    return false;
}

void
rt_progress_start(rt_progress *p, int64_t done)
{
    const char *term = getenv("TERM");
    *p = (rt_progress){.start = rt_now(), .first = done};
    p->live = isatty(fileno(rt_report())) && term && strcmp(term, "dumb");
    p->blocks = unicode_terminal();
    terminal = p->live;
}

static int64_t
memory_of(const rt_state *s)
{
    return s->memory ? s->memory : rt_peak_rss();
}

/* A bar of `columns` columns, done in [0,1]; Unicode has eighths of a column. */
static void
put_bar(char *out, size_t n, int columns, double done, bool blocks)
{
    static const char *const eighth[] = {" ",      "\u258f", "\u258e", "\u258d",
                                         "\u258c", "\u258b", "\u258a", "\u2589"};
    int eighths = (int)(done * columns * 8 + 0.5);
    size_t used = 0;
    for (int i = 0; i < columns && used + 4 < n; i++) {
        int left = eighths - 8 * i;
        const char *cell = left >= 8 ? "\u2588" : eighth[left > 0 ? left : 0];
        if (!blocks)
            cell = left >= 4 ? "#" : "-";
        used += (size_t)snprintf(out + used, n - used, "%s", cell);
    }
}

void
rt_progress_line(char *out, size_t n, const rt_progress *p, const rt_state *s,
                 int columns)
{
    /* in the order shown; dropped from the highest rank on */
    char field[NFIELDS][TEXT];
    static const int rank[NFIELDS] = {0, 1, 4, 5, 3, 2, 6};
    int digits = snprintf(field[0], TEXT, "%lld", (long long)s->total);
    snprintf(field[0], TEXT, "%*lld/%lld", digits, (long long)s->step,
             (long long)s->total);
    snprintf(field[1], TEXT, "loss %-6s", steady(s->loss, 6));
    snprintf(field[2], TEXT, "lr %-6s", steady(s->lr, 6));
    snprintf(field[3], TEXT, "norm %-5s", steady(s->grad_norm, 5));
    snprintf(field[4], TEXT, "%5s tok/s", short_count(s->tokens_per_second));
    snprintf(field[5], TEXT, "%5s left", duration(seconds_left(p, s)));
    snprintf(field[6], TEXT, "%5sB", short_count((double)memory_of(s)));
    int keep = NFIELDS, width = columns + 1;
    for (; keep > 0 && width + MIN_BAR > columns; keep -= width + MIN_BAR > columns) {
        width = 0;
        for (int i = 0; i < NFIELDS; i++)
            width += rank[i] < keep ? 1 + (int)strlen(field[i]) : 0;
    }
    int bar = columns - width;
    *out = 0;
    if (keep && bar >= MIN_BAR)
        put_bar(out, n, bar, (double)s->step / (double)(s->total ? s->total : 1),
                p->blocks);
    for (int i = 0; i < NFIELDS; i++)
        if (rank[i] < keep)
            snprintf(out + strlen(out), n - strlen(out), " %s", field[i]);
}

static int
terminal_columns(void)
{
    struct winsize w = {0};
    if (ioctl(fileno(rt_report()), TIOCGWINSZ, &w) || !w.ws_col)
        return 80;
    return w.ws_col;
}

static void
show(rt_progress *p, const char *line)
{
    fprintf(rt_report(), "\r%s\033[K", line);
    fflush(rt_report());
    on_screen = p;
    p->shown = true;
    p->drawn = rt_now();
}

static void
print(const rt_progress *p, const rt_state *s)
{
    char loss[TEXT], norm[TEXT];
    snprintf(loss, sizeof loss, "loss %.5g", s->loss);
    snprintf(norm, sizeof norm, "grad norm %.4g  ", s->grad_norm);
    bool none = isnan(s->loss); /* all steps since the last line were skipped */
    fprintf(rt_report(), "step %lld/%lld  %s  lr %.3g  %s%s tokens/s  %s left  %s\n",
            (long long)s->step, (long long)s->total, none ? "skipped" : loss, s->lr,
            none ? "" : norm, short_count(s->tokens_per_second),
            duration(seconds_left(p, s)), rt_bytes_text((double)memory_of(s)));
    fflush(rt_report());
}

void
rt_progress_step(rt_progress *p, const rt_state *s, bool logged)
{
    bool last = s->step == s->total;
    if (!p->live && logged)
        print(p, s);
    if (p->live && (last || rt_now() - p->drawn > 0.1)) {
        char line[2048];
        rt_progress_line(line, sizeof line, p, s, terminal_columns() - SPARE);
        show(p, line);
    }
    if (p->live && last) {
        fputc('\n', rt_report());
        p->shown = false;
        on_screen = NULL;
    }
}

void
rt_progress_part(rt_progress *p, const char *what, int64_t done, int64_t total)
{
    double spent = rt_now() - p->start;
    if (!p->live || spent < 0.5 || rt_now() - p->drawn < 0.1)
        return;
    char bar[4 * MAX_PART_BAR + 1] = "", tail[TEXT], line[512];
    double share = total > 0 ? (double)done / (double)total : 0;
    double left = share > 0 ? spent / share - spent : 0;
    int n = snprintf(tail, sizeof tail, " %3.0f %% of %s  %5s left", 100 * share,
                     short_count((double)total), duration(left));
    int room = terminal_columns() - SPARE - (int)strlen(what) - 1 - n;
    if (room >= MIN_BAR)
        put_bar(bar, sizeof bar, room < MAX_PART_BAR ? room : MAX_PART_BAR, share,
                p->blocks);
    snprintf(line, sizeof line, "%s %s%s", what, bar, tail);
    if (room >= 0)
        show(p, line);
}

void
rt_progress_clear(rt_progress *p)
{
    if (p->shown) {
        fprintf(rt_report(), "\r\033[K");
        fflush(rt_report());
    }
    p->shown = false;
    on_screen = on_screen == p ? NULL : on_screen;
}

void
rt_progress_wipe(void)
{
    if (on_screen)
        rt_progress_clear(on_screen);
    else if (terminal) /* a "^C" may stand there */
        fprintf(rt_report(), "\r\033[K");
}
