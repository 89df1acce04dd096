# counts.sh -- what shell tests share, to be sourced: every check is counted, `counts` says how many, and is the test's result.
passed=0 failed=0 skipped=0
check() # WHAT, then a command that is true if it is so
{
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "failed: $what"
        failed=$((failed + 1))
    fi
}
result() # 0|1, what is wrong
{
    check "$2" [ "$1" = 0 ]
}
counts()
{
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
