// rig_test.h -- tests of the virtual GPU: each program of a test runs in a process of its own.
//
// What the rig finds ends the process, so that is what a test looks at: the exit code and what was
// said. Memory of share() is common to test and program. Programs that are right must leave the
// same bits there with every seed.
#ifndef RIG_TEST_H
#define RIG_TEST_H

#include "test.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

enum { RACE = 97, FAULT = 98, RULE = 99 }; // exit codes of the rig
enum { SEEDS = 6 };
typedef std::vector<std::pair<std::string, std::string>> Env;
typedef std::function<void()> Program;

struct Result {
    int code; // exit code, -1: a signal ended it
    std::string said;
    bool says(const char *text) const
    {
        return said.find(text) != std::string::npos;
    }
};

struct Child {
    pid_t pid;
    FILE *said;
};

inline Child
start(const Program &program, const Env &env)
{
    fflush(NULL);
    Child c = {0, tmpfile()};
    c.pid = fork();
    if (c.pid)
        return c;
    dup2(fileno(c.said), 2);
    for (const auto &e : env)
        setenv(e.first.c_str(), e.second.c_str(), 1);
    program();
    exit(0);
}

inline Result
finish(const Child &c)
{
    int status = 0;
    char line[1000];
    Result r = {-1, ""};
    waitpid(c.pid, &status, 0);
    if (WIFEXITED(status))
        r.code = WEXITSTATUS(status);
    rewind(c.said);
    while (fgets(line, sizeof line, c.said))
        r.said += line;
    fclose(c.said);
    return r;
}

inline Result
run(const Program &program, const Env &env = {})
{
    return finish(start(program, env));
}

template <class T>
T *
share(size_t n)
{
    void *p = mmap(NULL, n * sizeof(T), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(p != MAP_FAILED);
    return (T *)p;
}

// Ends with this code, and says the text.
inline void
check_ends(const Program &program, int code, const char *text, const Env &env = {})
{
    Result r = run(program, env);
    CHECK(r.code == code);
    CHECK(r.says(text));
    if (r.code != code || !r.says(text))
        printf("  exit code %d, not %d with \"%s\": %s\n", r.code, code, text,
               r.said.c_str());
}

inline Env
with_seed(int seed, Env env = {})
{
    env.push_back({"VGPU_SEED", std::to_string(seed)});
    return env;
}

// A write into a canary; AddressSanitizer sees it before the rig does.
inline void
check_canary(const Program &program, const char *text, const Env &env = {})
{
#ifdef __SANITIZE_ADDRESS__
    (void)text;
    check_ends(program, 1, "AddressSanitizer", env);
#else
    check_ends(program, RULE, text, env);
#endif
}

// All seeds leave the same bits in out, and no race.
template <class T>
void
check_same(const Program &program, T *out, size_t n)
{
    std::vector<T> first;
    for (int seed = 0; seed <= SEEDS; seed++) {
        memset((void *)out, 0x55, n * sizeof(T));
        Env env = with_seed(seed % SEEDS);
        if (seed == SEEDS)
            env.push_back({"VGPU_RACE", "1"});
        Result r = run(program, env);
        CHECK(r.code == 0);
        if (r.code)
            printf("  seed %d: exit code %d: %s\n", seed, r.code, r.said.c_str());
        if (!seed)
            first.assign(out, out + n);
        CHECK(memcmp(first.data(), out, n * sizeof(T)) == 0);
    }
}

// With how many of the seeds are the bits not those of `right`, or does the program fail?
template <class T>
int
count_wrong(const Program &program, T *out, const std::vector<T> &right)
{
    int wrong = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        memset((void *)out, 0x55, right.size() * sizeof(T));
        Result r = run(program, with_seed(seed));
        wrong +=
            r.code != 0 || memcmp(right.data(), out, right.size() * sizeof(T)) != 0;
    }
    return wrong;
}

#define OK(call) ok((call) == 0, #call, __LINE__)
inline void
ok(bool good, const char *what, int line)
{
    if (good)
        return;
    fprintf(stderr, "line %d: %s failed\n", line, what);
    exit(1);
}

template <class T>
T *
device(size_t n)
{
    T *p = NULL;
    OK(cudaMalloc(&p, n * sizeof(T)));
    return p;
}

template <class T>
T *
managed(size_t n)
{
    T *p = NULL;
    OK(cudaMallocManaged(&p, n * sizeof(T)));
    return p;
}

inline cudaStream_t
stream()
{
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

inline cudaEvent_t
event()
{
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

#endif
