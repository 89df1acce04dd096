#!/usr/bin/env bash
# efficc verify: sound trainers are found sound, and one planted error in a kernel of the runtime, in a generated kernel or in the optimizer
# is found and its op named first. Errors are planted by a compiler that efficc is told to use: it edits kernels.c, or links a function that
# calls the runtime's and then changes one element by one hundredth of the largest.
efficc=$1/efficc
. "$(dirname "$0")/../counts.sh"
cases=$(cd "$(dirname "$0")/../cases" && pwd)
include=$(cd "$(dirname "$0")/../../runtime/include" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir OMP_WAIT_POLICY=passive

cat >"$dir/spoil.c" <<'END'
#include <efficc_rt.h>
#include <math.h>

static void
spoil(float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    x[n / 2] += 0.01f * most;
}

#ifdef NORM_GRAD /* of all calls of a step the second */
void __real_rt_norm_grad(rt_stream *, void *, void *, float *, float *, const void *, const void *, const float *,
                         const float *, const float *, const void *, const rt_norm_grad_of *, void *);
void
__wrap_rt_norm_grad(rt_stream *s, void *dx, void *low, float *dw, float *db, const void *dy, const void *x, const float *w,
                    const float *mean, const float *rstd, const void *from, const rt_norm_grad_of *n, void *scratch)
{
    static int calls;
    __real_rt_norm_grad(s, dx, low, dw, db, dy, x, w, mean, rstd, from, n, scratch);
    if (calls++ % 5 == 1)
        spoil(dx, 8 * n->norm.cols);
}
#endif
#ifdef EMBED_GRAD
void __real_rt_embed_grad(rt_stream *, float *, const void *, rt_dtype, const int64_t *, int64_t, int64_t, int64_t,
                          bool, void *);
void
__wrap_rt_embed_grad(rt_stream *s, float *d, const void *dy, rt_dtype t, const int64_t *ids, int64_t rows,
                     int64_t h, int64_t v, bool add, void *scratch)
{
    __real_rt_embed_grad(s, d, dy, t, ids, rows, h, v, add, scratch);
    spoil(d, v * h);
}
#endif
#ifdef OPTIM /* another learning rate for one unit */
void __real_rt_optim(rt_stream *, rt_run *, int, const float *);
void
__wrap_rt_optim(rt_stream *s, rt_run *run, int unit, const float *coef)
{
    run->hyper.lr *= unit == 1 ? 1.001 : 1;
    __real_rt_optim(s, run, unit, coef);
    run->hyper.lr /= unit == 1 ? 1.001 : 1;
}
#endif
END
cat >"$dir/spoiling-cc" <<'END'
#!/usr/bin/env bash
case " $* " in
*kernels.c*) for a; do case $a in *kernels.c) sed -i "$EDIT" "$a" ;; esac; done ;;
*.a*) [ -z "$WRAP" ] || set -- "$@" "$SPOIL/spoil.o" "-Wl,--wrap=$WRAP" ;;
esac
exec cc "$@"
END
chmod +x "$dir/spoiling-cc"
export SPOIL=$dir WRAP= EDIT=

sound() { # name, options, tokens of a row
    "$efficc" verify "$cases/$1/model.onnx" --batch 4 --seq "${3-16}" ${2-} >"$dir/said" 2>&1
    result $? "$1 ${2-}: exit code $?" && tail -1 "$dir/said" | grep -q '^verify: all agree' || cat "$dir/said"
}

# What the table's first row must say.
wrong() { # name, pattern
    local code=0
    "$efficc" verify "$cases/${MODEL:-gpt2-legacy17}/model.onnx" --batch 4 --seq 16 --fp32 --cc "$dir/spoiling-cc" >"$dir/said" 2>&1 || code=$?
    check "$1: exit code $code" [ $code = 1 ]
    sed -n 3p "$dir/said" | grep -q "WRONG .*$2" && tail -1 "$dir/said" | grep -q '^verify: WRONG'
    result $? "$1: the first row does not name $2" || cat "$dir/said"
}

planted() { # macro, function, pattern
    cc -O1 -D"$1" -I "$include" -c "$dir/spoil.c" -o "$dir/spoil.o"
    WRAP=$2 wrong "$2" "$3"
}

sound gpt2-legacy17
sound bert-legacy17 "--fp32 --no-unpad"
sound bert-legacy17 "--fp32" 1 # gradients of queries and keys are what rounding leaves of a difference
sound llama-tied-dynamo "--bf16 --lora-r 4 --dropout 0.1"
planted NORM_GRAD rt_norm_grad 'norm_grad (.*h.1/ln_2'
planted EMBED_GRAD rt_embed_grad 'embed_grad'
planted OPTIM rt_optim '(change) = optim'
EDIT='/= gelu /,/^}/ s/0\.70710678/0.7117/' MODEL=bert-legacy17 wrong 'a generated kernel, forward' 'gelu ('
EDIT='/= gelu_d /,/^}/ s/0\.70710678/0.7117/' MODEL=bert-legacy17 wrong 'a generated kernel, backward' 'gelu_d ('
# As JSON: everything, worst first; what is wrong says so.
as_json() { # what must be there
    "$efficc" verify "$cases/gpt2-legacy17/model.onnx" --batch 4 --seq 16 --fp32 --json --cc "$dir/spoiling-cc" >"$dir/said" 2>"$dir/errors"
    for line; do
        grep -qF -- "$line" <(tr -d '\t' <"$dir/said")
        result $? "JSON lacks $line"
    done
    check "JSON: rows" [ "$(grep -c '"allowed":' "$dir/said")" -gt 100 ]
}
EDIT='' WRAP='' as_json '"agree":true' '"wrong":0,' '"phase":"backward",' '"slopes":[{' '"op":"optim",'
cc -O1 -DNORM_GRAD -I "$include" -c "$dir/spoil.c" -o "$dir/spoil.o"
WRAP=rt_norm_grad as_json '"agree":false' '"ok":false' '"node":"/transformer/h.1/ln_2/LayerNormalization",'
"$efficc" verify /nowhere.onnx >"$dir/said" 2>&1
check "no model" [ $? = 1 ]
"$efficc" verify "$cases/gpt2-legacy17/model.onnx" --batch 4 --seq 16 --stop-after eval >"$dir/said" 2>&1
check "without all passes" [ $? = 1 ]
"$efficc" verify "$cases/gpt2-legacy17/model.onnx" --batch 4 --seq 16 --no-build >"$dir/said" 2>&1
check "without a build" [ $? = 1 ]
"$efficc" verify "$cases/gpt2-legacy17/model.onnx" --batch 4 --seq 16 2>/dev/null | true
left=("$dir"/efficc-verify-*)
check "nothing is left" [ ! -e "${left[0]}" ]
counts
