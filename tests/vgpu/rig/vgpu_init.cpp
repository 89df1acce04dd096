// vgpu_init.cpp -- settings, faults and the end of the process.
//
// Exit codes say who found what: 99 a rule was broken (die), 98 an address that may not be
// accessed, 97 races. VGPU_STATS=1 prints counts at exit.
#include "vgpu_int.h"
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

namespace vgpu {

enum { EXIT_RACE = 97, EXIT_FAULT = 98, EXIT_RULE = 99 };
Settings settings;

// ---- random numbers ----

uint64_t
Random::next()
{
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return s >> 11;
}

double
Random::unit()
{
    return (double)(next() & 0xffffff) / 0x1000000;
}

void
Random::seed(uint64_t x)
{
    s = (x + 1) * 0x9e3779b97f4a7c15ull ^ 0x1234567;
    for (int i = 0; i < 8; i++)
        next();
}

// ---- failures ----

void
die(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    fflush(stdout);
    fprintf(stderr, "vgpu[%d]: error: ", settings.rank);
    vfprintf(stderr, format, ap);
    fprintf(stderr, " [%s]\n", where().text);
    va_end(ap);
    fflush(stderr);
    _exit(EXIT_RULE);
}

static void
on_fault(int, siginfo_t *info, void *context)
{
    char *at = (char *)info->si_addr;
    bool write = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
    if (race_fault(at, write))
        return;
    fflush(stdout);
    fprintf(stderr, "vgpu[%d]: error: %s %s %s [%s]\n", settings.rank,
            running_text().text, write ? "writes to" : "reads from", describe(at).text,
            where().text);
    fflush(stderr);
    _exit(EXIT_FAULT);
}

static void
on_alarm(int)
{
    die("the time of VGPU_TIMEOUT is over: a kernel or a collective does not end");
}

static void
at_exit()
{
    check_guards();
    if (settings.stats)
        fprintf(stderr,
                "vgpu[%d]: operations %llu, launches %llu, threads %llu, switches "
                "%llu, warp "
                "operations %llu, mma %llu, faults %llu, most device bytes %zu\n",
                settings.rank, (unsigned long long)stats.operations,
                (unsigned long long)stats.launches, (unsigned long long)stats.threads,
                (unsigned long long)stats.switches, (unsigned long long)stats.warp_ops,
                (unsigned long long)stats.mma, (unsigned long long)stats.faults,
                device_peak());
    if (!race_count())
        return;
    fprintf(stderr, "vgpu[%d]: error: %d races\n", settings.rank, race_count());
    fflush(nullptr);
    _exit(EXIT_RACE);
}

static void
catch_signals(int timeout)
{
    static char stack[64 * 1024]; // a kernel's stack may be full
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction fault {};
    fault.sa_sigaction = on_fault;
    fault.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &fault, nullptr);
    sigaction(SIGBUS, &fault, nullptr);
    if (!timeout)
        return;
    struct sigaction late {};
    late.sa_handler = on_alarm;
    late.sa_flags = SA_ONSTACK;
    sigaction(SIGALRM, &late, nullptr);
    alarm((unsigned)timeout);
}

// ---- settings ----

static double
number(const char *name, double otherwise)
{
    const char *v = getenv(name);
    return v && *v ? strtod(v, nullptr) : otherwise;
}

// What a test may change on its way: what cuBLASLt has, and the seed. 0 is the order of issue and
// threads in order; others differ in all of it.
static void
settle(uint64_t seed)
{
    static const double eager[] = {0.5, 0.1, 0, 0, 0};
    static const Order order[] = {LOCKSTEP, RANDOM_WARPS, RANDOM_WARPS, HIGHEST_FIRST};
    settings.no_algo = number("VGPU_NO_ALGO", 0) != 0;
    settings.no_epilogue = number("VGPU_NO_EPILOGUE", 0) != 0;
    settings.slow_epilogue = number("VGPU_SLOW_EPILOGUE", 0) != 0;
    settings.product_fails = number("VGPU_PRODUCT_FAILS", 0) != 0;
    settings.policy = seed ? (Policy)(UNIFORM + seed % 3) : AS_ISSUED;
    settings.eager = seed ? eager[seed % 5] : 1;
    settings.order = seed ? order[seed % 4] : LOWEST_FIRST;
    order_random().seed(seed + (uint64_t)settings.rank * 7919);
    thread_random.seed(seed + 17);
}

void
init()
{
    static bool done;
    if (done)
        return;
    done = true;
    settings.rank = (int)number("RANK", 0);
    settle((uint64_t)number("VGPU_SEED", 0));
    settings.devices = (int)number("VGPU_DEVICES", 8);
    settings.policy = (Policy)number("VGPU_POLICY", settings.policy);
    settings.order = (Order)number("VGPU_ORDER", settings.order);
    settings.eager = number("VGPU_EAGER", settings.eager);
    settings.poison = number("VGPU_POISON", 1) != 0;
    settings.race = number("VGPU_RACE", 0) != 0;
    settings.trace = number("VGPU_TRACE", 0) != 0;
    settings.stats = number("VGPU_STATS", 0) != 0;
    settings.cold = number("VGPU_COLD", 0) != 0;
    settings.memory = (size_t)number("VGPU_MEMORY", 32e9);
    settings.shared = (size_t)number("VGPU_SHARED", SHARED_MOST);
    open_memory();
    catch_signals((int)number("VGPU_TIMEOUT", 0));
    atexit(at_exit);
}

} // namespace vgpu

// For tests that run in several orders: what is issued from here on does so as with this seed,
// and with the environment's cuBLASLt.
extern "C" void
vgpu_reseed(unsigned long long seed)
{
    vgpu::init();
    vgpu::settle(seed);
}

#ifdef __SANITIZE_ADDRESS__
// Streams and operations live as long as the process.
extern "C" const char *
__asan_default_options()
{
    return "detect_leaks=0";
}
#endif
