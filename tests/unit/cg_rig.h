/* cg_rig.h -- for tests of what codegen writes: a module as text, and a folder for its program. */
#ifndef EFFICC_CG_RIG_H
#define EFFICC_CG_RIG_H

#include "test.h"

#include "codegen/cg_int.h"
#include "said.h"

typedef struct rig {
    said s;
    ef_config cfg;
    ir_module *m;
    char dir[64];
} rig;

/* The module of a text, and a folder. */
static inline void
rig_open(rig *r, const char *text)
{
    *r = (rig){.cfg = ef_config_default};
    said_open(&r->s);
    r->cfg.threads = 2;
    r->cfg.argv_run = "efficc test";
    r->cfg.cflags = "-O1 -march=native -Wextra -Werror";
    r->s.ctx->cfg = &r->cfg;
    r->m = ir_parse(r->s.ctx, "t.ir", text);
    if (!r->m)
        printf("%s\n", said_text(&r->s));
    NEED(r->m != NULL);
    strcpy(r->dir, "/tmp/efficc-cg-XXXXXX");
    NEED(mkdtemp(r->dir) != NULL);
}

static inline void
rig_close(rig *r)
{
    char cmd[256];
    ir_module_free(r->m);
    said_close(&r->s);
    snprintf(cmd, sizeof cmd, "chmod -R u+w %s; rm -rf %s", r->dir, r->dir);
    CHECK(system(cmd) == 0);
}

static inline bool
plan_with(rig *r, const pass_target *target)
{
    pass_ctx pc = {r->m, ef_arena_new(), target};
    bool ok = pass_plan(&pc);
    ef_arena_free(pc.scratch);
    return ok;
}

static inline bool
plan_and_emit(rig *r)
{
    const pass_target *target = cg_target(r->s.ctx);
    return plan_with(r, target) && cg_emit(r->m, target, r->dir);
}

static inline char *
read_text(rig *r, const char *name)
{
    size_t n;
    const char *path = ef_printf(r->s.ctx->arena, "%s/%s", r->dir, name);
    return ef_read_file(r->s.ctx->arena, path, 1 << 24, &n);
}

#define MODULE(params, body)                                     \
    "efficc-ir 1 canon recognise task eval grad cse optim dce\n" \
    "unit 0 \"u\"\nmeta input.i \"ids\"\n" params                \
    "\nfunc $step(%i : i64[4]) {\n@b: fwd unit=0\n" body "\n}\n"

static const char small[] = MODULE("param $w : f32[4,8] frozen unit=0 normal",
                                   "  %a = tanh $w : f32[4,8]\n  ret %a");

#endif
